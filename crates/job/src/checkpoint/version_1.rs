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
    let mut memory = state["memory"].take();
    let mut strategy = memory["strategy"].take();
    let mut strategy_vectors = Map::new();
    lift(&mut strategy, &mut strategy_vectors);
    let members = state["members"].as_array_mut().map(std::mem::take).unwrap_or_default();
    *state = json!({
        "strategy": strategy,
        "strategy_vectors": strategy_vectors,
        "agreed": memory["agreed"].take(),
        "members": members.into_iter().map(member).collect::<Vec<_>>(),
        "center": state["center"].take(),
    });
    manifest
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
    let mut vectors = json!({ "residual": old["residual"].take() });
    let summed = old["summed"].take();
    let pending = match summed {
        Value::Null => Value::Null,
        mut summed => {
            vectors["sum"] = summed["vector"].take();
            summed["progress"] = summed["tails"].take();
            summed
        }
    };
    let mut private = json!({ "pending": pending });
    for field in ["drawn", "dealt", "samples", "loss_sum", "compute", "exchanges"] {
        private[field] = old[field].take();
    }
    json!({
        "worker": old["worker"],
        "round": old["round"],
        "version": old["version"],
        "params": old["params"],
        "optimizer": old["optimizer"],
        "private": private,
        "private_vectors": vectors,
    })
}
