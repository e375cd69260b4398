//! What a stranger sends before it is anybody: its question for the job, and its request to join with a key that it proves to have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_coordinator::{Join, Look};
use paceline_fuzz::{allowed_for, json, within};
use paceline_identity::{Request, Token, Tokens};

fuzz_target!(|data: &[u8]| {
    within(allowed_for(data), || {
        let look = json::<Look>(data).map(|look| (look.token, look.request));
        let join = json::<Join>(data).map(|join| (join.token, join.request));
        let alone = json::<Request>(data).map(|request| (None, request));
        for (token, request) in [look, join, alone].into_iter().flatten() {
            let token = token.and_then(|token| token.parse::<Token>().ok());
            let admitted = Tokens::default().check(token.as_ref(), &request, std::time::UNIX_EPOCH);
            assert!(admitted.is_err() || request.verify().is_ok());
            let _ = request.key_digest();
        }
    });
});
