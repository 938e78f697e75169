// Checks messages against the published schemas of the tasks extension. Reads [[schema, message], …] as JSON on stdin, and
// prints for each the problems that were found.
import { readFileSync } from "node:fs";
import * as schemas from "@modelcontextprotocol/ext-tasks/core/v2";

const given = JSON.parse(readFileSync(0, "utf8"));
const problems = given.map(([name, message]) => {
  const { success, error } = schemas[name].safeParse(message);
  return success ? [] : error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`);
});
console.log(JSON.stringify(problems));
