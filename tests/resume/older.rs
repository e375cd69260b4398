//! Checkpoints that an older version of the program wrote can be resumed.
//!
//! tests/fixtures/checkpoints-v1 and -v2 were written by the last versions with formats 1 and 2: `paceline train --model softmax
//! --workers 3 --kernels portable`, once with `--strategy pipe --epochs 2` and once with `--strategy diloco --epochs 8`. Beside each
//! checkpoint from the middle of the run lie the weights that the same run ended with. In both formats, weights are one flat vector.

use super::*;

#[test]
fn a_checkpoint_of_format_1_continues_bit_for_bit() {
    // A sum that was under way, and a strategy's long vector: what format 2 writes differently.
    continues("checkpoints-v1");
}

#[test]
fn a_checkpoint_of_format_2_continues_bit_for_bit() {
    continues("checkpoints-v2");
}

fn continues(folder: &str) {
    for name in ["pipe", "diloco"] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
        let checkpoint = Checkpoint::load(fixtures.join(name)).expect("it is complete");
        let job = Job { checkpoints: None, ..checkpoint.manifest.job.clone() };
        let ended = fs::read(fixtures.join(format!("{name}-end/weights.safetensors"))).unwrap();
        let ended = safetensors::SafeTensors::deserialize(&ended).expect("it is whole");
        let ended = ended.tensor("params").expect("it is there").data().to_vec();

        let prepared = checkpoint.prepare(&job, 3).expect("it fits");
        let trained = run(&job, &prepared, None, None);

        let params = trained.params.expect("there are params");
        let bytes: Vec<u8> = params.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(bytes == ended, "{name} ends with other weights than the version that began it");
    }
}

#[test]
fn weights_of_older_formats_can_be_evaluated() {
    for (folder, name) in [("checkpoints-v1", "pipe"), ("checkpoints-v2", "diloco")] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);

        let (manifest, params) = load_params(fixtures.join(name)).expect("it is complete");

        assert_eq!((manifest.params, params.len()), (650, 650));
        assert!(params.iter().any(|x| *x != 0.0));
    }
}
