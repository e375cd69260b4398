//! The text of tokens, of names in certificates, and of nonces: each has one spelling.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, json, within};
use paceline_identity::{Digest, JobName, Name, Nonce, Token, Tokens};

fuzz_target!(|data: &[u8]| {
    within(allowed_for(data), || {
        // Bytes with a right check, which no mutation would find.
        if let Some(body) = data.get(..68) {
            let sealed = [body, &Digest::of(body).0[..4]].concat();
            read(&format!("paceline1{}", base32(&sealed)));
        }
        let Ok(text) = std::str::from_utf8(data) else { return };
        read(text);
        if let Ok(name) = text.parse::<Name>() {
            assert_eq!(name.to_string(), text);
        }
        if let Ok(job) = JobName::try_from(text.to_owned()) {
            assert_eq!(job.as_str(), text);
        }
        json::<Nonce>(data);
        json::<Tokens>(data);
    });
});

fn read(text: &str) {
    let Ok(token) = text.parse::<Token>() else { return };
    let again = token.to_string();
    assert_eq!(again, text.trim().to_ascii_lowercase());
    assert!(again.parse() == Ok(token));
}

fn base32(bytes: &[u8]) -> String {
    let bit = |i: usize| bytes.get(i / 8).map_or(0, |byte| byte >> (7 - i % 8) & 1);
    let digits = (0..bytes.len() * 8).step_by(5);
    let digit = |first: usize| (first..first + 5).fold(0, |digit, i| digit << 1 | bit(i));
    digits.map(|it| b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(digit(it))] as char).collect()
}
