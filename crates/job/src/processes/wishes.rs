//! Wishes of the user to a coordinator on the same machine: files in its state folder, each answered by another file. Whoever
//! can write there may decide who joins.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use paceline_coordinator::Driver;
use paceline_identity::{TokenId, write_private};
use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Input;
use serde::{Deserialize, Serialize};

use super::secret;
use crate::error::{Error, RunError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Wish {
    /// The answer is the token.
    NewToken {
        uses: u32,
        lasts: Duration,
    },
    ListTokens,
    RevokeToken {
        number: u32,
    },
    Ban {
        worker: u32,
    },
}

/// A coordinator that runs answers within a fraction of this.
const ANSWER: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// How often a coordinator looks for wishes.
const POLL: Duration = Duration::from_millis(200);
const WISH_MAX: u64 = 4 << 10;
const FOLDER: &str = "wishes";
const WISH: &str = "wish";
const ANSWERED: &str = "answer";

/// Asks the coordinator with this state folder; returns what it says, with a line end.
pub fn ask_coordinator(state: &Path, wish: &Wish) -> Result<String, Error> {
    let nobody = || RunError::NoCoordinator { state: state.to_owned() };
    let [first, second] = secret();
    let path = state.join(FOLDER).join(format!("{first:016x}{second:016x}"));
    let (asked, answer) = (path.with_extension(WISH), path.with_extension(ANSWERED));
    let text = serde_json::to_string(wish).expect("a wish is plain data");
    write_private(&path, &text).map_err(|_| nobody())?;
    fs::rename(&path, &asked).map_err(|_| nobody())?;
    let since = Instant::now();
    while since.elapsed() < ANSWER {
        if let Ok(text) = fs::read_to_string(&answer) {
            let _ = fs::remove_file(&answer);
            let answer: Result<String, String> = serde_json::from_str(&text)
                .map_err(|error| RunError::Coordinate { why: error.to_string() })?;
            return answer.map_err(|why| RunError::WishRefused { why }.into());
        }
        std::thread::sleep(LOOK);
    }
    let _ = fs::remove_file(asked);
    Err(nobody().into())
}

/// The coordinator's end.
pub(super) struct Wishes {
    folder: PathBuf,
    looked: Instant,
}

impl Wishes {
    pub fn open(state: &Path) -> io::Result<Wishes> {
        let folder = state.join(FOLDER);
        // Wishes of the coordinator before were told that nobody answers.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        Ok(Wishes { folder, looked: Instant::now() })
    }

    /// Fulfills what was wished since the last look.
    pub fn fulfill(&mut self, driver: &mut Driver) {
        if self.looked.elapsed() < POLL {
            return;
        }
        self.looked = Instant::now();
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let paths = files.flatten().map(|file| file.path());
        for path in paths.filter(|path| path.extension() == Some(OsStr::new(WISH))) {
            let answer = match read(&path) {
                Ok(wish) => fulfill(driver, wish),
                Err(error) => Err(format!("the wish cannot be read: {error}")),
            };
            let _ = fs::remove_file(&path);
            let text = serde_json::to_string(&answer).expect("text is plain data");
            let aside = path.with_extension("");
            // If the answer cannot be written, the asker gives up by itself.
            let written = write_private(&aside, &text).is_ok();
            let _ = written.then(|| fs::rename(&aside, path.with_extension(ANSWERED)));
        }
    }
}

fn read(path: &Path) -> io::Result<Wish> {
    let mut text = String::new();
    fs::File::open(path)?.take(WISH_MAX).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

fn fulfill(driver: &mut Driver, wish: Wish) -> Result<String, String> {
    match wish {
        Wish::NewToken { uses, lasts } => {
            let token = driver.make_token(lasts, uses).map_err(|error| error.to_string())?;
            Ok(format!("{token}\n"))
        }
        Wish::ListTokens => Ok(list(driver)),
        Wish::RevokeToken { number } => {
            let token = TokenId(number);
            if !driver.tokens().issued().any(|it| it.id == token) {
                return Err(format!(
                    "there is no token {number}; `paceline token list` shows them"
                ));
            }
            driver.revoke_token(token).map_err(|error| error.to_string())?;
            Ok(format!("token {number} is revoked; workers that have joined with it stay\n"))
        }
        Wish::Ban { worker } => {
            let who = WorkerId(worker);
            if who >= driver.coordinator().state().next_id() {
                return Err(format!("there is no worker {worker}"));
            }
            // Without a member nothing is left of what was learned.
            if driver.coordinator().view().members == [who] {
                return Err(format!(
                    "worker {worker} is the only member; stop the run instead, or ban it when another one has joined"
                ));
            }
            driver.input(Input::Ban(who));
            Ok(format!("worker {worker} is banned; revoke its token, too, to keep it out\n"))
        }
    }
}

fn list(driver: &Driver) -> String {
    let now = SystemTime::now();
    let rows = driver.tokens().issued().map(|it| {
        let ends = match it.expires.duration_since(now) {
            _ if it.is_revoked => "revoked".to_owned(),
            Ok(left) => format!("ends in {:.1} hours", left.as_secs_f64() / 3600.0),
            Err(_) => "expired".to_owned(),
        };
        format!("token {}: {} of {} uses, {ends}\n", it.id.0, it.uses, it.uses_max)
    });
    rows.collect()
}
