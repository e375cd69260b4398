//! A journal as a file of JSON lines, written during a run and read afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_learn::mix;
use paceline_runtime::journal::VERSION;
use paceline_runtime::{Line, Reader, Record};
use serde::Deserialize;

use crate::error::JournalError;
use crate::job::Prepared;

/// Writes each line of a journal to a file; of frequent records ever fewer, once there are very many.
///
/// The journal `NAME` appears with its first line. A file that was there before is then renamed to
/// `NAME.old`, which replaces an earlier `NAME.old`: a run that is refused leaves the old journal in its
/// place, and one that dies after its first line leaves it as `NAME.old`. Devices and pipes are written
/// directly. A resumed run appends to the journal of the run before.
pub struct JournalFile {
    path: PathBuf,
    out: BufWriter<File>,
    /// The file's name and the journal's, until the first line is written.
    unnamed: Option<Renaming>,
    /// Frequent records are thinned after this many lines, and again after as many more.
    lines_max: u64,
    /// Lines since the last thinning.
    lines: u64,
    /// Frequent records so far, written or not.
    frequent: u64,
    keeping_one_in: u64,
    /// Whether it continues the journal of an earlier run, whose first line is not repeated.
    continues: bool,
    error: Option<io::Error>,
}

/// A journal that a resumed run can continue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// The latest time in it.
    pub last: Duration,
    /// Its length without a last line that was cut off.
    bytes: u64,
    lines: u64,
    keeping_one_in: u64,
}

/// About 100 MB.
const LINES_MAX: u64 = 1_000_000;

impl JournalFile {
    pub fn create(path: impl AsRef<Path>) -> Result<JournalFile, JournalError> {
        JournalFile::with_lines_max(path, LINES_MAX)
    }

    pub fn with_lines_max(
        path: impl AsRef<Path>,
        lines_max: u64,
    ) -> Result<JournalFile, JournalError> {
        let path = path.as_ref().to_owned();
        let mut unnamed = renaming(&path);
        let mut file = File::create(unnamed.as_ref().map_or(&path, |renaming| &renaming.from));
        if file.is_err() && unnamed.take().is_some() {
            // The file may be writable where its folder is not.
            file = File::create(&path);
        }
        let file = match file {
            Ok(file) => file,
            Err(source) => return Err(JournalError::Create { path, source }),
        };
        Ok(JournalFile {
            path,
            out: BufWriter::new(file),
            unnamed,
            lines_max: lines_max.max(1),
            lines: 0,
            frequent: 0,
            keeping_one_in: 1,
            continues: false,
            error: None,
        })
    }

    /// Continues a journal: new lines are appended.
    pub fn append(path: impl AsRef<Path>, recorded: Recorded) -> Result<JournalFile, JournalError> {
        let path = path.as_ref().to_owned();
        let opened = OpenOptions::new().append(true).open(&path).and_then(|file| {
            file.set_len(recorded.bytes)?;
            Ok(file)
        });
        let file = match opened {
            Ok(file) => file,
            Err(source) => return Err(JournalError::Create { path, source }),
        };
        Ok(JournalFile {
            path,
            out: BufWriter::new(file),
            unnamed: None,
            lines_max: LINES_MAX,
            lines: recorded.lines % LINES_MAX,
            frequent: 0,
            keeping_one_in: recorded.keeping_one_in,
            continues: true,
            error: None,
        })
    }

    /// Writes buffered lines. Returns the first error of the whole run, because a failed write does not stop
    /// the run.
    pub fn finish(mut self) -> Result<(), JournalError> {
        let flushed = self.out.flush();
        let written = self.error.take().map_or(flushed, Err);
        let path = self.path.clone();
        written.map_err(|source| JournalError::Incomplete { path, source })
    }

    fn write(&mut self, line: &Line) {
        if self.error.is_some() {
            return;
        }
        let text = serde_json::to_string(line).expect("a record is plain data");
        let named = self.take_name();
        if let Err(error) = named.and_then(|()| writeln!(self.out, "{text}")) {
            self.error = Some(error);
        }
        self.lines += 1;
    }

    /// Gives the journal its name. A name that cannot be replaced, such as a mount point, is written directly.
    fn take_name(&mut self) -> io::Result<()> {
        let Some(renaming) = self.unnamed.take() else { return Ok(()) };
        renaming.keep_old()?;
        if renaming.apply().is_err() {
            self.out = BufWriter::new(File::create(&self.path)?);
        }
        Ok(())
    }

    fn thin(&mut self, line: &Line) {
        self.lines = 0;
        self.keeping_one_in *= 2;
        let record = Record::Thinned { keeping_one_in: self.keeping_one_in };
        self.write(&Line { at: line.at, record });
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        if let Some(Renaming { from, .. }) = &self.unnamed {
            // No line was written. A leftover empty file does no harm.
            let _ = fs::remove_file(from);
        }
    }
}

/// A new journal under a temporary name beside its final one.
struct Renaming {
    from: PathBuf,
    to: PathBuf,
}

impl Renaming {
    fn apply(self) -> io::Result<()> {
        let renamed = fs::rename(&self.from, &self.to);
        if renamed.is_err() {
            let _ = fs::remove_file(&self.from);
        }
        renamed
    }

    fn keep_old(&self) -> io::Result<()> {
        match fs::metadata(&self.to) {
            Ok(there) if there.len() > 0 => {
                let old = old_name(&self.to);
                let copy = |_| fs::copy(&self.to, &old).map(drop);
                fs::rename(&self.to, &old).or_else(copy)
            }
            _ => Ok(()),
        }
    }
}

/// How a journal gets the name `path`; `None` if it has to be written to `path` directly.
fn renaming(path: &Path) -> Option<Renaming> {
    let is_redirected = ["/dev", "/proc"].iter().any(|root| path.starts_with(root));
    let to = match fs::metadata(path) {
        // A link stays a link; the file that it points to is replaced.
        Ok(there) if there.is_file() && !is_redirected => fs::canonicalize(path).ok()?,
        Ok(_) => return None,
        // A link to nowhere.
        Err(_) if fs::symlink_metadata(path).is_ok() => return None,
        Err(_) => path.to_owned(),
    };
    Some(Renaming { from: with_suffix(&to, &format!(".new-{}", std::process::id())), to })
}

/// Where the previous journal of this name is kept.
pub fn old_name(journal: &Path) -> PathBuf {
    with_suffix(journal, ".old")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The journal at `path`, if the resumed job wrote it and can continue it.
pub fn recorded(path: impl AsRef<Path>, prepared: &Prepared) -> Option<Recorded> {
    /// What every line has, and what thinning adds.
    #[derive(Deserialize)]
    struct Timed {
        at: f64,
        #[serde(default)]
        keeping_one_in: Option<u64>,
    }
    let path = path.as_ref();
    // A device has no end.
    if prepared.past.is_empty() || !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut file = BufReader::new(File::open(path).ok()?);
    let mut recorded = Recorded { last: Duration::ZERO, bytes: 0, lines: 0, keeping_one_in: 1 };
    let mut text = String::new();
    while file.by_ref().take(LINE_MAX).read_line(&mut text).ok()? > 0 && text.ends_with('\n') {
        if recorded.lines == 0 && !is_of_job(&text, prepared) {
            return None;
        }
        let Timed { at, keeping_one_in } = serde_json::from_str(&text).ok()?;
        recorded.last = recorded.last.max(Duration::try_from_secs_f64(at).ok()?);
        recorded.bytes += text.len() as u64;
        recorded.lines += 1;
        recorded.keeping_one_in = keeping_one_in.unwrap_or(recorded.keeping_one_in).max(1);
        text.clear();
    }
    // The last line may be cut off, but no line of ours is so long.
    (recorded.lines > 0 && (text.len() as u64) < LINE_MAX).then_some(recorded)
}

/// Whether a journal that begins with this line is one of this job.
fn is_of_job(first: &str, prepared: &Prepared) -> bool {
    let Ok(Line { record, .. }) = serde_json::from_str(first) else { return false };
    let plan = &prepared.plan;
    matches!(record, Record::Began { version, strategy, seed, samples_per_epoch, model, data, params, .. }
        if version == VERSION
            && strategy == prepared.name
            && (seed, samples_per_epoch) == (plan.seed, plan.samples_per_epoch)
            && params == prepared.size() as u64
            && (&model, &data) == (&prepared.model, &prepared.data))
}

impl Reader for JournalFile {
    fn read(&mut self, line: &Line) {
        if self.continues && matches!(line.record, Record::Began { .. }) {
            return;
        }
        if is_frequent(&line.record) {
            self.frequent += 1;
            // By hash, because every n-th record could always be one worker's.
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

/// The lines of a recorded journal, up to and including the first error.
pub fn read(path: impl AsRef<Path>) -> impl Iterator<Item = Result<Line, JournalError>> {
    let path = path.as_ref().to_owned();
    let (mut file, unopened) = match File::open(&path) {
        Ok(file) => (Some(BufReader::new(file)), None),
        Err(source) => (None, Some(JournalError::Open { path: path.clone(), source })),
    };
    let mut lines = 0;
    let lines = std::iter::from_fn(move || {
        lines += 1;
        let text = next_line(file.as_mut()?, &path, lines).transpose()?;
        Some(text.and_then(|text| {
            if lines == 1 {
                check_first(&path, &text)?;
            }
            let malformed =
                |source| JournalError::Malformed { path: path.clone(), line: lines, source };
            serde_json::from_str(&text).map_err(malformed)
        }))
    });
    let mut has_failed = false;
    unopened.into_iter().map(Err).chain(lines).take_while(move |line| {
        let is_readable = !has_failed;
        has_failed |= line.is_err();
        is_readable
    })
}

/// Longer lines are none of ours: a device may have a line without end.
const LINE_MAX: u64 = 16 << 20;

/// The next line without its end; `None` at the end of the file.
fn next_line(
    file: &mut BufReader<File>,
    path: &Path,
    line: usize,
) -> Result<Option<String>, JournalError> {
    let mut text = String::new();
    let read = file.take(LINE_MAX).read_line(&mut text);
    match read.map_err(|source| JournalError::Read { path: path.to_owned(), line, source })? {
        0 => Ok(None),
        _ if text.len() as u64 == LINE_MAX => {
            Err(JournalError::TooLong { path: path.to_owned(), line })
        }
        _ => Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned())),
    }
}

/// Refuses a first line that does not name a supported version; only then may the other lines be parsed.
fn check_first(path: &Path, text: &str) -> Result<(), JournalError> {
    let path = path.to_owned();
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    match (value["record"].as_str(), value["version"].as_u64()) {
        (Some("began"), Some(version)) if version == u64::from(VERSION) => Ok(()),
        (Some("began"), Some(version)) => {
            Err(JournalError::Version { path, version, supported: VERSION })
        }
        _ => Err(JournalError::NotAJournal { path }),
    }
}

#[cfg(test)]
mod tests {
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
    fn written_lines_are_read_back() {
        let path = scratch("round-trip.jsonl");
        let lines = [began(), committed(1), line(Record::Crashed { who: WorkerId(3) })];

        let mut file = JournalFile::create(&path).unwrap();
        lines.iter().for_each(|line| file.read(line));
        file.finish().unwrap();

        let again: Result<Vec<Line>, JournalError> = read(&path).collect();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(again.unwrap(), lines);
    }

    #[test]
    fn an_old_journal_stays_until_the_first_line_and_is_then_kept_aside() {
        let folder = scratch("kept");
        fs::create_dir_all(&folder).unwrap();
        let (path, old) = (folder.join("run.jsonl"), folder.join("run.jsonl.old"));
        fs::write(&path, "the old journal").unwrap();

        // A run that is refused.
        drop(JournalFile::create(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "the old journal");

        // A run that dies after its first line.
        let mut file = JournalFile::create(&path).unwrap();
        file.read(&began());
        drop(file);

        assert_eq!(fs::read_to_string(&old).unwrap(), "the old journal");
        assert_eq!(read(&path).filter_map(Result::ok).count(), 1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = scratch("linked");
        fs::create_dir_all(&folder).unwrap();
        let (path, link) = (folder.join("run.jsonl"), folder.join("link"));
        fs::write(&path, "the old journal").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();

        let mut file = JournalFile::create(&link).unwrap();
        file.read(&began());
        file.finish().unwrap();

        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&path).count(), 1);
        assert!(folder.join("run.jsonl.old").exists());
        fs::remove_dir_all(&folder).unwrap();
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
        // The first 1,000, then 1,000 of the next 2,000, ...: six thinnings by record 63,000.
        assert_eq!(thinned, [2, 4, 8, 16, 32, 64]);
        assert!((6_000..7_000).contains(&lines.len()), "{} lines", lines.len());
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number_and_ends_the_iteration() {
        let path = scratch("broken.jsonl");
        let first = serde_json::to_string(&began()).unwrap();
        std::fs::write(&path, format!("{first}\n{{\"at\":\n{first}\n")).unwrap();

        let lines: Vec<Result<Line, JournalError>> = read(&path).collect();

        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines.len(), 2);
        let error = lines[1].as_ref().unwrap_err().to_string();
        assert!(error.ends_with("broken.jsonl, line 2: EOF while parsing a value"), "{error}");
    }

    #[test]
    fn journals_of_other_versions_are_refused() {
        let path = scratch("version.jsonl");
        std::fs::write(&path, "{\"record\":\"began\",\"version\":7,\"new\":true}\n").unwrap();

        let first = read(&path).next().expect("there is a line");

        std::fs::remove_file(&path).unwrap();
        assert!(matches!(first, Err(JournalError::Version { version: 7, supported: 1, .. })));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_reported_at_the_end_and_does_not_stop_the_run() {
        let mut file = JournalFile::create("/dev/full").unwrap();

        (0..10_000).for_each(|round| file.read(&committed(round)));

        let error = file.finish().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the journal /dev/full is incomplete: No space left on device (os error 28)"
        );
    }
}
