//! A strategy's memory as it travels and is saved: plain data, and long vectors by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_learn::Vector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Data in two halves: what is short is JSON, what is long is a vector with a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub json: Value,
    /// Only the names are serialised; the vectors travel as frames, in the order of their names.
    #[serde(with = "names")]
    pub vectors: BTreeMap<String, Arc<Vector>>,
}

mod names {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use paceline_learn::Vector;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(
        vectors: &BTreeMap<String, Arc<Vector>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        vectors.keys().collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Arc<Vector>>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        Ok(names.into_iter().map(|name| (name, Arc::default())).collect())
    }
}
