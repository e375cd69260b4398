//! Damaged checkpoints are skipped with a message.

use super::*;

/// A folder with two checkpoints: (folder, older, newer). Tests damage the newer one.
fn two(name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let dir = test_folder(name);
    let job = job("cpsgd", &dir, None);
    start(&job, 2, Some(700));
    let older = Checkpoint::load(&dir).expect("there is a checkpoint").path;
    resume(&job, &dir, 2, Some(700));
    let newer = Checkpoint::load(&dir).expect("there is a checkpoint").path;
    assert_ne!(older, newer);
    (dir, older, newer)
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_a_message() {
    let (dir, older, newer) = two("damage");
    for name in ["manifest.json", "weights.safetensors", "state.safetensors"] {
        let path = newer.join(name);
        let whole = fs::read(&path).expect("the file exists");
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 4;
        let damages = [
            ("cut short", whole[..whole.len() / 2].to_vec()),
            ("one bit flipped", flipped),
            ("empty", vec![]),
            ("something else", b"\x89PNG\r\n\x1a\n and so on".to_vec()),
        ];
        for (damage, bytes) in damages {
            fs::write(&path, bytes).expect("the file can be damaged");

            let found = Checkpoint::load(&dir).expect("the older one is complete");

            assert_eq!(found.path, older, "{name} {damage}");
            let [error] = &found.passed_over[..] else { panic!("{:?}", found.passed_over) };
            let message = error.to_string();
            assert!(message.contains(name) && !message.contains('\n'), "{message}");
            assert!(load_params(&dir).is_ok(), "{name} {damage}");
            assert!(Checkpoint::load(&newer).is_err(), "requested by name, {damage} is refused");
        }
        fs::remove_file(&path).expect("the file can be removed");
        assert_eq!(Checkpoint::load(&dir).expect("the older one").path, older, "{name} removed");
        fs::write(&path, whole).expect("the file can be restored");
    }
    assert_eq!(Checkpoint::load(&dir).expect("the file is restored").path, newer);
}

#[test]
fn every_truncation_and_every_flipped_bit_of_a_manifest_is_detected() {
    let (_, _, newer) = two("manifest");
    let path = newer.join("manifest.json");
    let whole = fs::read(&path).expect("the file exists");
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        for bytes in [flipped, whole[..at].to_vec()] {
            fs::write(&path, bytes).expect("the file can be damaged");
            if let Ok((manifest, _)) = load_params(&newer) {
                // A damaged field name may be read as an unknown field, but the content must be the same.
                fs::write(&path, &whole).expect("the file can be restored");
                let whole = load_params(&newer).expect("it is complete").0;
                let json = |manifest| serde_json::to_value(manifest).expect("it is plain data");
                assert_eq!(json(manifest), json(whole), "byte {at}");
            }
        }
    }
}

#[test]
fn a_newer_format_and_an_empty_folder_are_refused_with_a_message() {
    let (dir, _, newer) = two("format");
    let path = newer.join("manifest.json");
    let text = fs::read_to_string(&path).expect("the file exists");
    fs::write(&path, text.replacen("\"version\":4", "\"version\":7", 1)).expect("written");

    let found = Checkpoint::load(&dir).expect("the older one is complete");
    assert!(found.passed_over[0].to_string().ends_with(
        "manifest.json: version 7 of the format, but this program reads versions 1 to 4"
    ));

    let empty = test_folder("empty");
    let message = Checkpoint::load(&empty).err().expect("there is none");
    assert_eq!(message.to_string(), format!("there is no checkpoint in {} yet", empty.display()));
}

#[test]
fn a_skipped_checkpoint_is_renamed_and_never_read_again() {
    let (dir, older, newer) = two("passed-over");
    fs::write(newer.join("state.safetensors"), b"").expect("the file can be damaged");
    let found = Checkpoint::load(&dir).expect("the older one is complete");
    let job = found.manifest.job.clone();
    let prepared = found.prepare(&job, 2).expect("it fits");

    run(&job, &prepared, Some(&older), None);

    let newest = Checkpoint::load(&dir).expect("there is a last checkpoint");
    assert!(newest.passed_over.is_empty() && newest.path != older);
    let name = newer.file_name().expect("a name").to_string_lossy();
    assert!(dir.join(format!("passed-over-{name}")).exists());
}
