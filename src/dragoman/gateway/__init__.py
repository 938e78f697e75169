"""The gateway: signed envelopes in, actions carried out, over HTTP."""
