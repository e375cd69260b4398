//! Files that cross the network in chunks: received aside and renamed when they are whole.

use std::io;
use std::path::Path;

use bytes::Bytes;
use paceline_runtime::WorkerId;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::{Stream, StreamExt};

use crate::messages::CHUNK;
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
    tokio::fs::rename(&aside, path).await?;
    sync_folder(folder)
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
