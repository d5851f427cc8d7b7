//! Validates output by the schemas in `docs/reference/schema`, with Debian's python3-jsonschema.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::repository;

/// Folder of the schemas, in the repository.
pub const SCHEMAS: &str = "docs/reference/schema";

/// Prints each error of the value on standard input.
const VALIDATE: &str = "
import json, sys
from jsonschema.validators import validator_for
with open(sys.argv[1]) as file:
    schema = json.load(file)
validator = validator_for(schema)
validator.check_schema(schema)
for error in validator(schema).iter_errors(json.load(sys.stdin)):
    print(error.json_path + ': ' + ' '.join(error.message.split()))
";

/// Errors of a value by a schema such as `plan`, each with its place.
///
/// # Panics
/// The schema is not valid, or python3-jsonschema is not installed.
pub fn schema_errors(schema: &str, value: &Value) -> Vec<String> {
    // Debian's Python has Debian's packages; another may come first in PATH.
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", VALIDATE])
        .arg(repository().join(SCHEMAS).join(format!("{schema}.json")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tests/setup installs Python");
    let mut stdin = python.stdin.take().expect("it is piped");
    // Python that fails before it reads says so.
    let _ = stdin.write_all(value.to_string().as_bytes());
    drop(stdin);
    let output = python.wait_with_output().expect("a child of ours");
    assert!(
        output.status.success(),
        "{schema}: {}\ntests/setup installs python3-jsonschema",
        String::from_utf8_lossy(&output.stderr)
    );
    let errors = String::from_utf8_lossy(&output.stdout);
    errors.lines().map(str::to_owned).collect()
}
