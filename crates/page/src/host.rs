//! Which names the page answers to. A stranger's web site can let its own name point to this machine (DNS rebinding); its
//! requests then name that site, and are refused.

use std::net::{IpAddr, Ipv6Addr};

/// Whether a request for this `Host` is meant for us: addresses as numbers cannot be rebound, and names must be known.
pub fn is_ours(host: &str, names: &[String]) -> bool {
    let name = without_port(host);
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_number = name.parse::<IpAddr>().is_ok()
        || name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .is_some_and(|name| name.parse::<Ipv6Addr>().is_ok());
    is_number
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|ours| ours.eq_ignore_ascii_case(name))
}

/// Whether an `Origin` is the page itself, as the browser reached it.
pub fn is_same_origin(origin: &str, host: &str) -> bool {
    ["http://", "https://"].into_iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_known_names_are_ours_and_others_are_not() {
        let names = ["node7".to_owned(), "gpu.example".to_owned()];
        let ours = [
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:8080",
            "10.1.2.3:80",
            "localhost",
            "LocalHost:1",
            "node7:9",
            "gpu.example.",
            "GPU.example:8080",
        ];
        let strange = [
            "",
            ":80",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil-localhost",
            "node70",
            "[::1",
            "127.0.0.1:8080@evil.example",
            "127.0.0.1 ",
        ];

        for host in ours {
            assert!(is_ours(host, &names), "{host}");
        }
        for host in strange {
            assert!(!is_ours(host, &names), "{host}");
        }
    }

    #[test]
    fn another_port_or_host_is_another_origin() {
        let host = "127.0.0.1:8080";

        assert!(is_same_origin("http://127.0.0.1:8080", host));
        for other in ["http://127.0.0.1:8081", "http://evil.example", "null", "127.0.0.1:8080"] {
            assert!(!is_same_origin(other, host), "{other}");
        }
    }
}
