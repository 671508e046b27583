//! As much of JSON Schema as docs/schemas uses: types, properties, items, enumerations, references.

use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Returns the folder of the schemas.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas")
}

/// A schema file.
pub struct Schema {
    path: PathBuf,
    root: Value,
}

impl Schema {
    /// Reads a schema, such as `gateway/status.json`.
    pub fn load(name: &str) -> Self {
        Self::read(&folder().join(name))
    }

    fn read(path: &Path) -> Self {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let root = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        Self { path: path.to_owned(), root }
    }

    /// Returns the whole schema.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// Fails with all differences between a value and the schema.
    pub fn assert_valid(&self, value: &Value) {
        let faults = self.faults(value);
        assert!(faults.is_empty(), "{:?}:\n{}\nin {value}", self.path, faults.join("\n"));
    }

    /// Returns all differences between a value and the schema, each with its place.
    pub fn faults(&self, value: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        self.check(&self.root, value, "$", &mut faults);
        faults
    }

    fn check(&self, schema: &Value, value: &Value, place: &str, faults: &mut Vec<String>) {
        let rules = schema.as_object().expect("a schema is an object");
        for rule in rules.keys() {
            assert!(KNOWN_RULES.contains(&&**rule), "{:?}: rule {rule} is unknown", self.path);
        }
        if let Some(target) = rules.get("$ref") {
            self.check_reference(target.as_str().expect("a text"), value, place, faults);
        }
        if let Some(expected) = rules.get("const")
            && expected != value
        {
            faults.push(format!("{place}: {value} instead of {expected}"));
        }
        if let Some(Value::Array(accepted)) = rules.get("enum")
            && !accepted.contains(value)
        {
            faults.push(format!("{place}: {value} is none of {accepted:?}"));
        }
        if let Some(expected) = rules.get("type")
            && !is_of_type(value, expected)
        {
            faults.push(format!("{place}: {value} is not {expected}"));
        }
        if let Some(Value::Array(ways)) = rules.get("anyOf") {
            let fits = |way: &Value| {
                let mut found = Vec::new();
                self.check(way, value, place, &mut found);
                found.is_empty()
            };
            if !ways.iter().any(fits) {
                faults.push(format!("{place}: {value} fits none of {ways:?}"));
            }
        }
        if let (Some(items), Some(values)) = (rules.get("items"), value.as_array()) {
            for (index, value) in values.iter().enumerate() {
                self.check(items, value, &format!("{place}[{index}]"), faults);
            }
        }
        if let Some(members) = value.as_object() {
            self.check_members(rules, members, place, faults);
        }
    }

    fn check_members(
        &self,
        rules: &Map<String, Value>,
        members: &Map<String, Value>,
        place: &str,
        faults: &mut Vec<String>,
    ) {
        for key in rules.get("required").and_then(Value::as_array).into_iter().flatten() {
            if !members.contains_key(key.as_str().expect("a text")) {
                faults.push(format!("{place}: {key} is missing"));
            }
        }
        let none = Map::new();
        let properties = rules.get("properties").and_then(Value::as_object).unwrap_or(&none);
        if !is_described(rules) {
            return;
        }
        let all_others = rules.get("additionalProperties");
        // A key without a schema is a fault, unless the schema says what all other keys hold.
        for (key, value) in members {
            let place = format!("{place}.{key}");
            match properties.get(key).or(all_others) {
                Some(schema) => self.check(schema, value, &place, faults),
                None => faults.push(format!("{place} is not in the schema")),
            }
        }
    }

    fn check_reference(&self, target: &str, value: &Value, place: &str, faults: &mut Vec<String>) {
        match target.strip_prefix("#/$defs/") {
            Some(name) => self.check(&self.root["$defs"][name], value, place, faults),
            None => {
                let other = Self::read(&self.path.with_file_name(target));
                other.check(&other.root, value, place, faults);
            }
        }
    }
}

/// The rules that schemas may have. `unit` names the unit of a number; validators skip it.
const KNOWN_RULES: [&str; 14] = [
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "unit",
    "type",
    "const",
    "enum",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "anyOf",
];

/// Whether a schema says which members an object has. One without a type may be anything.
fn is_described(rules: &Map<String, Value>) -> bool {
    rules.contains_key("properties") || rules.contains_key("additionalProperties")
}

/// Whether a value has one of the types.
fn is_of_type(value: &Value, types: &Value) -> bool {
    if let Value::Array(types) = types {
        return types.iter().any(|one| is_of_type(value, one));
    }
    match types.as_str().expect("a text") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other} is unknown"),
    }
}

#[test]
fn differences_from_a_schema_are_found() {
    let schema = Schema::load("gateway/history.json");
    let sample = |ready: Value| {
        serde_json::json!({
            "at_seconds": 20.0, "seconds": 10.0, "sent_bytes": 1, "received_bytes": 2,
            "lost_packets": 0, "completed": 1, "failed": 0, "collective_bytes": 9,
            "collective_seconds": 0.5, "bound_seconds": 0.4, "problems": 0, "ready": ready,
        })
    };
    let history = |version: u32, samples: Vec<Value>| {
        let mut report = serde_json::json!({ "interval_seconds": 10.0, "samples": samples });
        report["version"] = version.into();
        report
    };
    schema.assert_valid(&history(1, vec![sample(true.into())]));
    assert_eq!(schema.faults(&history(2, vec![])), ["$.version: 2 instead of 1"]);
    let wrong = schema.faults(&history(1, vec![sample("yes".into())]));
    assert_eq!(wrong, ["$.samples[0].ready: \"yes\" is not \"boolean\""]);
    let mut more = history(1, vec![]);
    more["other"] = 1.into();
    more.as_object_mut().expect("an object").remove("samples");
    let found = schema.faults(&more);
    assert_eq!(found, ["$: \"samples\" is missing", "$.other is not in the schema"]);
}
