//! Files that cross the network in chunks: received aside and renamed when they are whole.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use paceline_runtime::WorkerId;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::{Stream, StreamExt};

use crate::messages::{CHUNK, INITIAL};
use crate::store::sync_folder;

/// Writes exactly so many bytes to a file.
pub(crate) async fn receive(
    path: &Path,
    from: WorkerId,
    bytes: u64,
    chunks: impl Stream<Item = io::Result<Bytes>>,
) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    tokio::fs::create_dir_all(folder).await?;
    // Two workers may send files of the same name; each has its own aside.
    let aside = path
        .with_file_name(format!(".{}.from-{from}", path.file_name().unwrap_or_default().display()));
    let received = receive_aside(&aside, bytes, chunks).await;
    if received.is_err() {
        let _ = tokio::fs::remove_file(&aside).await;
        return received;
    }
    if path.file_name().is_some_and(|name| name == INITIAL) {
        keep_first(&aside, path)?;
    } else {
        tokio::fs::rename(&aside, path).await?;
    }
    sync_folder(folder)
}

/// Gives a file its name, unless there is one of that name: then that one stays.
fn keep_first(aside: &Path, path: &Path) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if path.try_exists()? { std::fs::remove_file(aside) } else { std::fs::rename(aside, path) }
}

async fn receive_aside(
    path: &Path,
    bytes: u64,
    chunks: impl Stream<Item = io::Result<Bytes>>,
) -> io::Result<()> {
    let mut file = File::create(path).await?;
    let mut chunks = std::pin::pin!(chunks);
    let mut missing = bytes;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        missing = missing.checked_sub(chunk.len() as u64).ok_or_else(|| {
            io::Error::other(format!("more than the announced {bytes} bytes came"))
        })?;
        file.write_all(&chunk).await?;
    }
    if missing > 0 {
        return Err(io::Error::other(format!("{missing} of {bytes} bytes are missing")));
    }
    file.sync_all().await
}

/// Reads a file chunk by chunk.
pub(crate) async fn send<F: Future<Output = io::Result<()>>>(
    path: &Path,
    mut send: impl FnMut(Bytes) -> F,
) -> io::Result<()> {
    let mut file = File::open(path).await?;
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        if (&mut file).take(CHUNK as u64).read_to_end(&mut chunk).await? == 0 {
            return Ok(());
        }
        send(chunk.into()).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_initial_parameters_stay_and_other_files_are_replaced() {
        let folder = std::env::temp_dir().join(format!("paceline-first-{}", std::process::id()));
        for (name, kept) in [(INITIAL, "one"), ("deployed", "two")] {
            let path = folder.join(name);
            for (from, text) in [(0, "one"), (1, "two")] {
                let chunks = tokio_stream::iter([Ok(Bytes::from(text))]);
                receive(&path, WorkerId(from), 3, chunks).await.expect("the disk has room");
            }
            assert_eq!(std::fs::read_to_string(&path).expect("it is whole"), kept);
        }
        let left = std::fs::read_dir(&folder).expect("the folder is there").count();
        assert_eq!(left, 2, "nothing is left aside");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
