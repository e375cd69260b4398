//! Parser messages in plain words: users know tables and numbers, not the types of a program.

/// The message without names of types: `invalid type: string "x", expected u64` becomes
/// `expected a whole number, 0 or more; found the string "x"`.
pub fn plain(message: &str) -> String {
    let wrong = ["invalid type: ", "invalid value: ", "invalid length "];
    let split = wrong.iter().find_map(|start| {
        let (found, expected) = message.strip_prefix(start)?.rsplit_once(", expected ")?;
        Some((*start, found, expected))
    });
    match split {
        Some(("invalid length ", length, expected)) => {
            format!("expected {}; found {length} values", wanted(expected))
        }
        Some((_, found, expected)) => {
            format!("expected {}; found {}", wanted(expected), thing(found))
        }
        None if message.starts_with("data did not match any variant of untagged enum ") => {
            "this is none of the forms that are allowed here".to_owned()
        }
        None => message.replace("unknown variant ", "unknown name "),
    }
}

/// What belongs here.
fn wanted(expected: &str) -> String {
    let text = match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        _ if expected.starts_with("a nonzero ") => "a whole number above 0",
        _ if expected.starts_with("struct ") => "a table",
        _ if expected.starts_with("internally tagged enum ") => "a table with a `kind`",
        _ if expected.starts_with("enum ") || expected == "string or map" => "a name, or a table",
        _ if expected.starts_with("variant identifier") => "a name",
        _ => return expected.replace("a tuple of size", "a list of length"),
    };
    text.to_owned()
}

/// What is there instead.
fn thing(found: &str) -> String {
    let found = found.trim_end_matches(" as i128").trim_end_matches(" as u128");
    let number = found.strip_prefix("integer `").or(found.strip_prefix("floating point `"));
    if let Some(number) = number {
        return format!("the number {}", number.trim_end_matches('`'));
    }
    match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" | "null" => "nothing".to_owned(),
        _ if found.starts_with("string ") => format!("the {found}"),
        _ => found.trim_start_matches("boolean ").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_the_program_become_words() {
        for (message, expected) in [
            (
                "invalid type: string \"x\", expected u64",
                "expected a whole number, 0 or more; found the string \"x\"",
            ),
            ("invalid value: integer `-5`, expected f32", "expected a number; found the number -5"),
            (
                "invalid value: integer `99999999999999999999` as i128, expected u64",
                "expected a whole number, 0 or more; found the number 99999999999999999999",
            ),
            (
                "invalid type: sequence, expected internally tagged enum Rule",
                "expected a table with a `kind`; found a list",
            ),
            (
                "invalid length 2, expected a tuple of size 3",
                "expected a list of length 3; found 2 values",
            ),
            ("invalid type: boolean `true`, expected a string", "expected a string; found `true`"),
            ("unknown variant `a`, expected `b`", "unknown name `a`, expected `b`"),
            ("missing field `kind`", "missing field `kind`"),
        ] {
            assert_eq!(plain(message), expected);
        }
    }
}
