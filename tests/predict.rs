//! The real program trains a model, evaluates it, and classifies pictures and continues texts with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use paceline::Dataset;
use paceline::learn::digits;
use serde_json::Value;

/// Runs the program; returns exit code, stdout and stderr.
fn paceline(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments).current_dir(folder()).stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn json(arguments: &[&str]) -> Value {
    let (code, stdout, stderr) = paceline(arguments);
    assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
    serde_json::from_str(&stdout).expect("stdout is JSON and nothing else")
}

fn assert_refused(code: i32, arguments: &[&str], message: &str) {
    let expected = (code, String::new(), format!("error: {message}\n"));
    assert_eq!(paceline(arguments), expected, "{arguments:?}");
}

/// The working folder of all calls, so that messages name files without a path.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("predict")
}

/// Trains on digits once, with checkpoints in the folder `digits`; returns the outcome.
fn trained() -> &'static Value {
    static OUTCOME: OnceLock<Value> = OnceLock::new();
    OUTCOME.get_or_init(|| {
        let _ = fs::remove_dir_all(folder());
        fs::create_dir_all(folder()).expect("a test folder can be created");
        json(&["train", "--epochs", "5", "--checkpoints", "digits", "--json"])
    })
}

/// An image of the test set, with pixels from 0 to 16.
fn pixels(index: u64) -> Vec<u8> {
    let mut row = [0.0; 64];
    digits().1.read(index, 0, &mut row);
    row.iter().map(|input| ((input + digits::CHANNEL.mean) * 16.0).round() as u8).collect()
}

fn write_png(name: &str, side: u32, samples: &[u8]) {
    let file = fs::File::create(folder().join(name)).unwrap();
    let mut encoder = png::Encoder::new(file, side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(samples).unwrap();
}

fn byte(pixel: &u8) -> u8 {
    (f32::from(*pixel) * 255.0 / 16.0).round() as u8
}

fn classes(predictions: &Value) -> Vec<u64> {
    let predictions = predictions.as_array().expect("an array");
    predictions.iter().map(|prediction| prediction["class"].as_u64().unwrap()).collect()
}

#[test]
fn evaluate_reports_the_accuracy_at_the_end_of_training() {
    let outcome = trained();

    let evaluated = json(&["evaluate", "digits", "--json"]);

    assert_eq!(evaluated["accuracy"], outcome["accuracy"]);
    assert_eq!((&evaluated["model"], &evaluated["data"]), (&"mlp".into(), &"digits".into()));
    assert_eq!((&evaluated["samples"], &evaluated["epochs"]), (&360.into(), &5.0.into()));
    let of_classes = |field: &str| -> u64 {
        evaluated["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one[field].as_u64().unwrap())
            .sum()
    };
    assert_eq!(of_classes("samples"), 360);
    assert_eq!(Some(of_classes("correct")), evaluated["correct"].as_u64());
    assert_eq!(evaluated["confusion"].as_array().map(Vec::len), Some(10));
}

#[test]
fn evaluate_prints_classes_and_confusions() {
    trained();

    let (code, stdout, stderr) = paceline(&["evaluate", "digits"]);

    assert_eq!((code, stderr.as_str()), (0, ""));
    let first: Vec<_> = stdout.lines().take(2).collect();
    assert!(first[0].starts_with("digits/round-") && first[0].contains(": mlp after 5.00 epochs"));
    assert!(first[1].starts_with("360 samples: loss 0."), "{}", first[1]);
    assert!(
        stdout.contains("\nclass  samples") && stdout.contains("\nMost confused\n"),
        "{stdout}"
    );
}

#[test]
fn pictures_of_the_test_set_are_classified_like_the_test_set() {
    const COUNT: u64 = 40;
    trained();
    let count = COUNT.to_string();
    let tested = json(&["predict", "digits", "--test", &count, "--json"]);
    let (mut pngs, mut maps, mut idx) = (vec![], vec![], vec![0, 0, 8, 3]);
    for length in [COUNT as u32, 8, 8] {
        idx.extend(length.to_be_bytes());
    }
    for index in 0..COUNT {
        let pixels = pixels(index);
        let bytes: Vec<u8> = pixels.iter().map(byte).collect();
        pngs.push(format!("{index}.png"));
        write_png(&pngs[index as usize], 8, &bytes);
        maps.push(format!("{index}.pgm"));
        let map = [b"P5 8 8 16\n", pixels.as_slice()].concat();
        fs::write(folder().join(&maps[index as usize]), map).unwrap();
        idx.extend(bytes);
    }
    fs::write(folder().join("images.idx"), idx).unwrap();
    let predicted = |files: &[String]| {
        let files = files.iter().map(String::as_str);
        let arguments: Vec<&str> =
            ["predict", "digits"].into_iter().chain(files).chain(["--json"]).collect();
        json(&arguments)
    };

    let right = tested.as_array().unwrap().iter().filter(|one| one["class"] == one["label"]);
    assert!(right.count() as u64 > COUNT * 3 / 4);
    assert_eq!(classes(&predicted(&pngs)), classes(&tested));
    assert_eq!(classes(&predicted(&maps)), classes(&tested));
    assert_eq!(classes(&predicted(&["images.idx".to_owned()])), classes(&tested));
    let two = json(&["predict", "digits", "images.idx", "--first", "2", "--top", "1", "--json"]);
    assert_eq!(classes(&two), classes(&tested)[..2]);
    assert_eq!(two[1]["image"], "images.idx[1]");
    assert_eq!(two[1]["top"].as_array().map(Vec::len), Some(1));
}

/// Each pixel becomes 2 x 2, black on white.
#[test]
fn a_larger_scan_of_a_digit_is_resized_and_inverted() {
    trained();
    let small = pixels(0);
    let large: Vec<u8> = (0..256).map(|at| 255 - byte(&small[at / 32 * 8 + at % 16 / 2])).collect();
    write_png("scan.png", 16, &large);

    let (code, stdout, stderr) = paceline(&["predict", "digits", "scan.png", "--invert"]);

    assert_eq!(stderr, "scan.png: resized from 16 x 16 to 8 x 8 pixels\n");
    assert_eq!(code, 0);
    let last = stdout.lines().last().unwrap();
    assert!(last.starts_with("scan.png  0      0 (") && last.matches('%').count() == 3, "{last}");
}

#[test]
fn the_pictures_that_can_be_read_are_classified_all_the_same() {
    trained();
    write_png("good.png", 8, &[0; 64]);
    fs::write(folder().join("bad.png"), "<html>").unwrap();

    let files = ["predict", "digits", "missing.png", "good.png", "bad.png"];
    let (code, stdout, stderr) = paceline(&files);

    assert_eq!(code, 2, "{stderr}");
    assert_eq!(stdout.lines().filter(|line| line.starts_with("good.png ")).count(), 1, "{stdout}");
    let errors: Vec<&str> = stderr.lines().collect();
    assert!(errors[0].starts_with("error: cannot read the picture missing.png: "), "{stderr}");
    assert!(errors[1].starts_with("error: bad.png: ") && errors.len() == 2, "{stderr}");
}

#[test]
fn models_and_inputs_that_do_not_fit_are_refused_with_a_message() {
    trained();
    fs::create_dir_all(folder().join("empty")).unwrap();
    fs::write(folder().join("page.html"), "<html>").unwrap();
    fs::write(folder().join("huge.pgm"), "P5 99999 99999 255\n").unwrap();
    let train = ["train", "--epochs", "0.1", "--json", "--checkpoints"];
    json(&[&train[..], &["noise", "--model", "quadratic", "--data", "noise"]].concat());

    assert_refused(2, &["evaluate", "empty"], "there is no checkpoint in empty yet");
    assert_refused(
        2,
        &["predict", "nowhere", "--test", "1"],
        "cannot read nowhere: No such file or directory (os error 2)",
    );
    for command in [&["evaluate", "noise"][..], &["predict", "noise", "--test", "1"]] {
        let message = "the model quadratic was trained on noise and predicts no classes";
        assert_refused(2, command, message);
    }
    assert_refused(
        2,
        &["evaluate", "digits", "--data", "patterns"],
        "patterns has 16 x 16 x 1 images in 10 classes, but the model was trained on digits: 8 x 8 x 1 images in 10 classes",
    );
    assert_refused(
        2,
        &["evaluate", "digits", "--data", "mnist", "--data-dir", "nowhere"],
        "there is no train-images-idx3-ubyte in nowhere/mnist; run `paceline data get mnist --dir nowhere` to fetch it",
    );
    assert_refused(
        2,
        &["predict", "digits", "page.html"],
        "page.html: unknown picture format: give PNG, PGM (P5), PPM (P6) or IDX",
    );
    assert_refused(
        2,
        &["predict", "digits", "absent.png"],
        "cannot read the picture absent.png: No such file or directory (os error 2)",
    );
    assert_refused(
        2,
        &["predict", "digits", "huge.pgm"],
        "huge.pgm: 99999 x 99999 pixels are too many: give a picture of at most 64 million",
    );
    assert_refused(
        2,
        &["predict", "digits", "--text", "Alice"],
        "the model was trained on digits, which is not a text",
    );
    let tiny = ["--model", "charlm", "--data", "text", "--samples", "64", "--workers", "1"];
    json(&[&["train", "--epochs", "6", "--json", "--checkpoints", "text"][..], &tiny].concat());
    assert_refused(
        2,
        &["predict", "text", "page.html"],
        "the model was trained on a text (text): let it continue a text with --text",
    );
    assert_refused(
        2,
        &["predict", "text", "--text", "caf\u{e9}"],
        "the training text has no '\u{e9}': remove it or replace it",
    );
    let (code, text, _) = paceline(&["predict", "text", "--text", "Alice was", "--length", "80"]);
    assert_eq!((code, &text[..9], text.trim_end_matches('\n').len()), (0, "Alice was", 89));
    let (code, _, stderr) = paceline(&["predict", "digits"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("required arguments were not provided"), "{stderr}");
}

/// A token is an index into the vocabulary of the text as it was at training time.
#[test]
fn a_text_model_keeps_its_vocabulary_when_the_file_changes_or_is_deleted() {
    trained();
    let text = |line: &str| fs::write(folder().join("hello.txt"), line.repeat(80)).unwrap();
    text("hello world\n");
    let train = "train --model charlm --data hello.txt --workers 1 --samples 8 --batch 8 --validation 0 --epochs 1 --json --checkpoints hello";
    json(&train.split(' ').collect::<Vec<_>>());
    let continued = || paceline(&["predict", "hello", "--text", "he", "--temperature", "0"]);
    let before = continued();
    assert_eq!(before.0, 0, "{}", before.2);

    text("zello world\n");
    assert_eq!(continued(), before);
    let changed = "hello.txt no longer has the characters of the text that the checkpoint was trained on: restore the file, or start a new run";
    assert_refused(2, &["train", "--resume", "hello", "--epochs", "2"], changed);
    let other = "hello.txt has other characters than the text that the model was trained on: give a text with the same characters";
    assert_refused(2, &["evaluate", "hello"], other);
    fs::remove_file(folder().join("hello.txt")).unwrap();
    assert_eq!(continued(), before);
}
