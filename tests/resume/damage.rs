//! Damaged checkpoints are passed over with a sentence.

use super::*;

/// Two checkpoints, of which the newer one is to be harmed.
fn two(name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let dir = room(name);
    let job = job("cpsgd", &dir, None);
    begin(&job, 2, Some(700));
    let older = Checkpoint::load(&dir).expect("it was saved").path;
    go_on(&job, &dir, 2, Some(700));
    let newer = Checkpoint::load(&dir).expect("it was saved").path;
    assert_ne!(older, newer);
    (dir, older, newer)
}

#[test]
fn a_damaged_checkpoint_is_passed_over_with_a_sentence() {
    let (dir, older, newer) = two("damage");
    for name in ["manifest.json", "weights.safetensors", "state.safetensors"] {
        let path = newer.join(name);
        let whole = fs::read(&path).expect("it is there");
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 4;
        let harms = [
            ("cut short", whole[..whole.len() / 2].to_vec()),
            ("one bit flipped", flipped),
            ("empty", vec![]),
            ("something else", b"\x89PNG\r\n\x1a\n and so on".to_vec()),
        ];
        for (harm, bytes) in harms {
            fs::write(&path, bytes).expect("it can be harmed");

            let found = Checkpoint::load(&dir).expect("the older one is whole");

            assert_eq!(found.path, older, "{name} {harm}");
            let [error] = &found.passed_over[..] else { panic!("{:?}", found.passed_over) };
            let sentence = error.to_string();
            assert!(sentence.contains(name) && !sentence.contains('\n'), "{sentence}");
            assert!(load_params(&dir).is_ok(), "{name} {harm}");
            assert!(Checkpoint::load(&newer).is_err(), "asked for by name, {harm} is refused");
        }
        fs::remove_file(&path).expect("it can be lost");
        assert_eq!(Checkpoint::load(&dir).expect("the older one").path, older, "{name} lost");
        fs::write(&path, whole).expect("it can be put back");
    }
    assert_eq!(Checkpoint::load(&dir).expect("all is well again").path, newer);
}

#[test]
fn every_cut_and_every_flipped_byte_of_a_manifest_is_noticed() {
    let (_, _, newer) = two("manifest");
    let path = newer.join("manifest.json");
    let whole = fs::read(&path).expect("it is there");
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        for bytes in [flipped, whole[..at].to_vec()] {
            fs::write(&path, bytes).expect("it can be harmed");
            if let Ok((manifest, _)) = load_params(&newer) {
                // A field of the envelope may be read as another unknown one, but never as wrong content.
                fs::write(&path, &whole).expect("it can be put back");
                assert_eq!(manifest, load_params(&newer).expect("it is whole").0, "byte {at}");
            }
        }
    }
}

#[test]
fn a_newer_format_and_an_empty_folder_get_a_sentence() {
    let (dir, _, newer) = two("format");
    let path = newer.join("manifest.json");
    let text = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, text.replacen("\"version\":1", "\"version\":7", 1)).expect("written");

    let found = Checkpoint::load(&dir).expect("the older one is whole");
    assert!(
        found.passed_over[0]
            .to_string()
            .ends_with("manifest.json: version 7 of the format, but this program reads version 1")
    );

    let empty = room("empty");
    let sentence = Checkpoint::load(&empty).err().expect("there is none");
    assert_eq!(sentence.to_string(), format!("there is no checkpoint in {} yet", empty.display()));
}

#[test]
fn what_was_passed_over_is_kept_under_another_name_and_never_read_again() {
    let (dir, older, newer) = two("passed-over");
    fs::write(newer.join("state.safetensors"), b"").expect("it can be harmed");
    let found = Checkpoint::load(&dir).expect("the older one is whole");
    let job = found.manifest.job.clone();
    let prepared = found.prepare(&job, 2).expect("it fits");

    run(&job, &prepared, Some(&older), None);

    let newest = Checkpoint::load(&dir).expect("the end was saved");
    assert!(newest.passed_over.is_empty() && newest.path != older);
    let name = newer.file_name().expect("a name").to_string_lossy();
    assert!(dir.join(format!("passed-over-{name}")).exists());
}
