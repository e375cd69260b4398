//! Reads manifests of version 1, by turning their JSON into that of version 2.
//!
//! In version 1 a member's private fields lay beside its others, and long lists of floats in the strategy's
//! memory were replaced by `{"$tensor": name}`.

use serde_json::{Map, Value, json};

/// The field that stood for a long list.
const TENSOR: &str = "$tensor";
/// Where the strategy's memory began in the names of its tensors.
const PREFIX: &str = "memory.strategy.";

/// Turns a manifest of version 1 into one of version 2; fields that are missing are for serde to report.
pub fn upgrade(mut manifest: Value) -> Value {
    let Some(state) = manifest.get_mut("state") else { return manifest };
    let mut memory = take(state, "memory");
    let mut strategy = take(&mut memory, "strategy");
    let mut strategy_vectors = Map::new();
    lift(&mut strategy, &mut strategy_vectors);
    let members = take(state, "members").as_array_mut().map(std::mem::take).unwrap_or_default();
    let (agreed, center) = (take(&mut memory, "agreed"), take(state, "center"));
    *state = json!({
        "strategy": strategy,
        "strategy_vectors": strategy_vectors,
        "agreed": agreed,
        "members": members.into_iter().map(member).collect::<Vec<_>>(),
        "center": center,
    });
    manifest
}

/// A field of an object; `null` if there is none. The file may hold anything.
fn take(value: &mut Value, field: &str) -> Value {
    value.as_object_mut().and_then(|fields| fields.remove(field)).unwrap_or_default()
}

/// Removes every tensor from the memory, and lists it by its place.
fn lift(value: &mut Value, vectors: &mut Map<String, Value>) {
    let Value::Object(fields) = value else { return };
    fields.retain(|_, field| {
        let Some(name) = field.get(TENSOR).and_then(Value::as_str) else { return true };
        let place = name.strip_prefix(PREFIX).unwrap_or(name);
        vectors.insert(place.to_owned(), name.into());
        false
    });
    fields.values_mut().for_each(|field| lift(field, vectors));
}

fn member(mut old: Value) -> Value {
    let mut vectors = json!({ "residual": take(&mut old, "residual") });
    let mut pending = take(&mut old, "summed");
    if pending.is_object() {
        vectors["sum"] = take(&mut pending, "vector");
        let tails = take(&mut pending, "tails");
        pending["progress"] = tails;
    }
    let mut private = json!({ "pending": pending });
    for field in ["drawn", "dealt", "samples", "loss_sum", "compute", "exchanges"] {
        private[field] = take(&mut old, field);
    }
    json!({
        "worker": take(&mut old, "worker"),
        "round": take(&mut old, "round"),
        "version": take(&mut old, "version"),
        "params": take(&mut old, "params"),
        "optimizer": take(&mut old, "optimizer"),
        "private": private,
        "private_vectors": vectors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_of_the_wrong_shape_is_left_for_serde_to_report() {
        for state in [json!("text"), json!(3), json!([1]), json!({ "memory": "text" })] {
            let upgraded = upgrade(json!({ "state": state }));
            assert_eq!(upgraded["state"]["members"], json!([]), "{state}");
        }
        let members = json!([7, { "summed": "text" }]);
        let upgraded = upgrade(json!({ "state": { "members": members } }));
        assert_eq!(upgraded["state"]["members"][1]["private"]["pending"], "text");
    }
}
