//! A journal as a file of JSON lines: written during a run, read after it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use paceline_learn::mix;
use paceline_runtime::journal::VERSION;
use paceline_runtime::{Line, Reader, Record};

/// Writes each line of a journal to a file, and ever fewer of them when there are very many.
pub struct JournalFile {
    path: PathBuf,
    out: BufWriter<File>,
    /// After so many lines frequent records are thinned, and again after as many more.
    lines_max: u64,
    /// Lines since the last thinning.
    lines: u64,
    /// Frequent records so far, written or not.
    frequent: u64,
    keeping_one_in: u64,
    error: Option<io::Error>,
}

/// About 100 MB.
const LINES_MAX: u64 = 1_000_000;

impl JournalFile {
    pub fn create(path: impl AsRef<Path>) -> Result<JournalFile, String> {
        JournalFile::with_lines_max(path, LINES_MAX)
    }

    pub fn with_lines_max(path: impl AsRef<Path>, lines_max: u64) -> Result<JournalFile, String> {
        let path = path.as_ref().to_owned();
        let file = File::create(&path)
            .map_err(|error| format!("cannot write the journal {}: {error}", path.display()))?;
        Ok(JournalFile {
            path,
            out: BufWriter::new(file),
            lines_max: lines_max.max(1),
            lines: 0,
            frequent: 0,
            keeping_one_in: 1,
            error: None,
        })
    }

    /// Writes what is left; a write that failed at any time is told here, for a run goes on without its journal.
    pub fn finish(mut self) -> Result<(), String> {
        let flushed = self.out.flush();
        match self.error.map_or(flushed, Err) {
            Ok(()) => Ok(()),
            Err(error) => {
                Err(format!("the journal {} is incomplete: {error}", self.path.display()))
            }
        }
    }

    fn write(&mut self, line: &Line) {
        if self.error.is_some() {
            return;
        }
        let text = serde_json::to_string(line).expect("a record is plain data");
        if let Err(error) = writeln!(self.out, "{text}") {
            self.error = Some(error);
        }
        self.lines += 1;
    }

    fn thin(&mut self, line: &Line) {
        self.lines = 0;
        self.keeping_one_in *= 2;
        let record = Record::Thinned { keeping_one_in: self.keeping_one_in };
        self.write(&Line { at: line.at, record });
    }
}

impl Reader for JournalFile {
    fn read(&mut self, line: &Line) {
        if is_frequent(&line.record) {
            self.frequent += 1;
            // By hash and not in turn: turns could keep one worker's records and leave out another's.
            if !mix(self.frequent).is_multiple_of(self.keeping_one_in) {
                return;
            }
        }
        self.write(line);
        if self.lines >= self.lines_max {
            self.thin(line);
        }
    }
}

fn is_frequent(record: &Record) -> bool {
    matches!(
        record,
        Record::Computed { .. }
            | Record::Entered { .. }
            | Record::Exchanged { .. }
            | Record::Sent { .. }
            | Record::Waited { .. }
            | Record::Applied { .. }
            | Record::Committed { .. }
            | Record::Note { .. }
    )
}

/// The lines of a recorded journal, up to the first that cannot be read.
pub fn read(path: impl AsRef<Path>) -> impl Iterator<Item = Result<Line, String>> {
    let path = path.as_ref().to_owned();
    let (lines, unopened) = match File::open(&path) {
        Ok(file) => (Some(BufReader::new(file).lines()), None),
        Err(error) => (None, Some(format!("cannot read the journal {}: {error}", path.display()))),
    };
    let lines = lines.into_iter().flatten().enumerate().map(move |(before, text)| {
        let at = || format!("{}, line {}", path.display(), before + 1);
        let text = text.map_err(|error| format!("{}: {error}", at()))?;
        if before == 0 {
            check_first(&text).map_err(|sentence| format!("{}: {sentence}", at()))?;
        }
        serde_json::from_str(&text).map_err(|error| format!("{}: {}", at(), without_place(&error)))
    });
    let mut failed = false;
    unopened.into_iter().map(Err).chain(lines).take_while(move |line| {
        let go_on = !failed;
        failed |= line.is_err();
        go_on
    })
}

/// The first line must say a version that we know; the others are only then ours to read.
fn check_first(text: &str) -> Result<(), String> {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    match (value["record"].as_str(), value["version"].as_u64()) {
        (Some("began"), Some(version)) if version == u64::from(VERSION) => Ok(()),
        (Some("began"), Some(version)) => {
            Err(format!("a journal of version {version}; this Paceline reads version {VERSION}"))
        }
        _ => Err("not the beginning of a Paceline journal".into()),
    }
}

/// serde_json counts lines too, from the start of the text it was given: always 1 here.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_runtime::WorkerId;

    use super::*;

    fn line(record: Record) -> Line {
        Line { at: Duration::from_micros(1_500), record }
    }

    fn began() -> Line {
        line(Record::Began {
            version: VERSION,
            strategy: "ssgd".into(),
            seed: 1,
            samples_total: 10,
            samples_per_epoch: 10,
            model: String::new(),
            data: String::new(),
            params: 1,
            kernels: String::new(),
            together: true,
            central: false,
        })
    }

    fn committed(round: u64) -> Line {
        line(Record::Committed { who: WorkerId(0), round, fingerprint: None })
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("paceline-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let path = scratch("round-trip.jsonl");
        let lines = [began(), committed(1), line(Record::Crashed { who: WorkerId(3) })];

        let mut file = JournalFile::create(&path).unwrap();
        lines.iter().for_each(|line| file.read(line));
        file.finish().unwrap();

        let again: Result<Vec<Line>, String> = read(&path).collect();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(again.unwrap(), lines);
    }

    #[test]
    fn a_long_journal_is_thinned_but_keeps_every_rare_record() {
        let path = scratch("thinned.jsonl");

        let mut file = JournalFile::with_lines_max(&path, 1_000).unwrap();
        file.read(&began());
        for round in 0..100_000 {
            file.read(&committed(round));
            if round % 10_000 == 0 {
                file.read(&line(Record::Left { who: WorkerId(1) }));
            }
        }
        file.finish().unwrap();

        let lines: Vec<Line> = read(&path).map(Result::unwrap).collect();
        std::fs::remove_file(&path).unwrap();
        let left = lines.iter().filter(|line| matches!(line.record, Record::Left { .. })).count();
        let thinned: Vec<u64> = lines
            .iter()
            .filter_map(|line| match line.record {
                Record::Thinned { keeping_one_in } => Some(keeping_one_in),
                _ => None,
            })
            .collect();
        assert_eq!(left, 10);
        // 1,000 whole, 1,000 of 2,000, ...: after six thinnings 63,000 of the 100,000 are behind.
        assert_eq!(thinned, [2, 4, 8, 16, 32, 64]);
        assert!((6_000..7_000).contains(&lines.len()), "{} lines", lines.len());
    }

    #[test]
    fn a_broken_line_is_told_with_its_number_and_ends_the_reading() {
        let path = scratch("broken.jsonl");
        let first = serde_json::to_string(&began()).unwrap();
        std::fs::write(&path, format!("{first}\n{{\"at\":\n{first}\n")).unwrap();

        let lines: Vec<Result<Line, String>> = read(&path).collect();

        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines.len(), 2);
        let sentence = lines[1].as_ref().unwrap_err();
        assert!(
            sentence.ends_with("broken.jsonl, line 2: EOF while parsing a value"),
            "{sentence}"
        );
    }

    #[test]
    fn journals_of_other_versions_are_refused() {
        let path = scratch("version.jsonl");
        std::fs::write(&path, "{\"record\":\"began\",\"version\":7,\"new\":true}\n").unwrap();

        let lines: Vec<Result<Line, String>> = read(&path).collect();

        std::fs::remove_file(&path).unwrap();
        let sentence = lines[0].as_ref().unwrap_err();
        assert!(sentence.ends_with("a journal of version 7; this Paceline reads version 1"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_at_the_end_and_stops_nothing() {
        let mut file = JournalFile::create("/dev/full").unwrap();

        (0..10_000).for_each(|round| file.read(&committed(round)));

        let sentence = file.finish().unwrap_err();
        assert_eq!(
            sentence,
            "the journal /dev/full is incomplete: No space left on device (os error 28)"
        );
    }
}
