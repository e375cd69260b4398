//! Certificates of strangers: none is trusted, and none breaks what reads it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, json, within};
use paceline_identity::{Certificate, JobName, Trust, name_of};
use rustls_pki_types::CertificateDer;

fuzz_target!(|data: &[u8]| {
    within(allowed_for(data), || {
        if let Ok(name) = name_of(&CertificateDer::from(data)) {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let job = JobName::try_from("fuzz".to_owned()).expect("a name");
        if let Ok(trust) = Trust::new(data.to_vec(), job) {
            assert_eq!(trust.certificate(), data);
        }
        json::<Certificate>(data);
    });
});
