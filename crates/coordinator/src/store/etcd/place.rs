//! Where in etcd a job is kept: `etcd://HOST:PORT,HOST:PORT/NAME`.

use std::fmt;
use std::str::FromStr;

/// The servers, and the name under which all keys of the job are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPlace {
    pub servers: Vec<String>,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "give servers and a name, such as etcd://10.0.0.1:2379,10.0.0.2:2379/run1; the name has letters, digits, '.', '_' and '-'"
)]
pub struct PlaceError;

const SCHEME: &str = "etcd://";
const SERVERS_MAX: usize = 16;
const NAME_MAX: usize = 100;

impl EtcdPlace {
    /// Whether a text is meant to be such a place, rather than a folder.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl FromStr for EtcdPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<EtcdPlace, PlaceError> {
        let rest = text.strip_prefix(SCHEME).ok_or(PlaceError)?;
        let (servers, name) = rest.split_once('/').ok_or(PlaceError)?;
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        let is_server = |server: &String| {
            let parts = server.rsplit_once(':');
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_named = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_allowed);
        let is_valid = is_named && servers.len() <= SERVERS_MAX && servers.iter().all(is_server);
        is_valid.then(|| EtcdPlace { servers, name: name.to_owned() }).ok_or(PlaceError)
    }
}

impl fmt::Display for EtcdPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.servers.join(","), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_servers_and_a_name() {
        let text = "etcd://10.0.0.1:2379,[::1]:2379/run-1";
        let place: EtcdPlace = text.parse().expect("a place");
        assert_eq!((place.servers.len(), place.name.as_str()), (2, "run-1"));
        assert_eq!(place.to_string(), text);
        let bad = ["", "run1", "etcd://", "etcd://a:1", "etcd://a:1/", "etcd:///x", "etcd://a/x"];
        for text in bad.into_iter().chain(["etcd://a:1/x/y", "etcd://a:99999/x", "etcd://a:1,/x"]) {
            assert_eq!(text.parse::<EtcdPlace>(), Err(PlaceError), "{text}");
        }
    }
}
