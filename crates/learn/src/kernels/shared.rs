//! Memory that processes of one host share. Each process owns one segment, which only that process can write; the others map it
//! for reading. (Linux: memfd with seals.)
//!
//! The seals make mapped memory safe to touch: a segment never shrinks, so that reading it never faults, not even after its owner
//! has died, and no process but the owner can get a writable mapping of it. What the numbers are is the owner's word, as it is for
//! numbers that arrive on a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::Lent;

/// Pieces of segments that are mapped side by side begin and end at multiples of this many bytes. Systems with larger pages refuse
/// the mapping, and the caller copies.
pub const PAGE: usize = 4096;

/// A segment with these seals keeps its length, and its owner's mapping is the only one that can write.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL
}

/// Why a descriptor that a peer has passed is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum SegmentProblem {
    #[error("a segment of {found} bytes where all members have {expected}")]
    Length { found: u64, expected: usize },
    #[error("a segment that its owner could shrink, or others could write")]
    Seals,
    #[error("a descriptor that is not a segment: {0}")]
    System(#[from] io::Error),
}

/// Mapped memory.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping stays where it is until it is dropped, whichever thread holds it. All access goes through the types below.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: the system chooses an address where nothing is mapped.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    /// The place of some numbers; `None` if they do not lie in the mapping.
    fn at(&self, place: usize, len: usize) -> Option<NonNull<f32>> {
        let end = place.checked_add(len.checked_mul(size_of::<f32>())?)?;
        let is_inside = end <= self.len && place.is_multiple_of(align_of::<f32>());
        // SAFETY: the place lies in the mapping, which is one allocation.
        is_inside.then(|| unsafe { self.start.add(place) }.cast())
    }

    #[inline]
    fn words(&self, bytes: usize) -> &[AtomicU64] {
        let len = bytes.min(self.len) / size_of::<AtomicU64>();
        // SAFETY: the mapping begins at a page, so words are aligned; they live as long as it does, and every access to this part of a
        // segment is atomic, in all processes.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody holds a pointer into the mapping any more: all owners of lent memory hold the mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The segment of this process: words for notices, and blocks for numbers.
pub struct OwnSegment {
    fd: OwnedFd,
    mapping: Mapping,
    control: usize,
    blocks: Vec<Block>,
}

struct Block {
    place: usize,
    len: usize,
    is_claimed: AtomicBool,
}

impl OwnSegment {
    /// A segment with this many bytes of words, and blocks of these lengths in bytes. Memory is taken when it is written.
    pub fn new(control: usize, blocks: &[usize]) -> io::Result<Arc<OwnSegment>> {
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let mut len = control.checked_next_multiple_of(PAGE).ok_or_else(too_long)?;
        let mut list = Vec::with_capacity(blocks.len());
        for block in blocks {
            let bytes = block.checked_next_multiple_of(PAGE).ok_or_else(too_long)?;
            list.push(Block { place: len, len: bytes, is_claimed: AtomicBool::new(false) });
            len = len.checked_add(bytes).ok_or_else(too_long)?;
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("paceline", flags)?;
        ftruncate(&fd, len as u64)?;
        let mapping = Mapping::new(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        fcntl_add_seals(&fd, seals())?;
        Ok(Arc::new(OwnSegment { fd, mapping, control, blocks: list }))
    }

    pub fn bytes(&self) -> usize {
        self.mapping.len
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn words(&self) -> &[AtomicU64] {
        self.mapping.words(self.control)
    }

    /// Claims a block if nobody in this process has it.
    pub fn claim(self: &Arc<Self>, block: usize) -> Option<Claim> {
        let is_claimed = &self.blocks.get(block)?.is_claimed;
        let taken = is_claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| Claim { of: self.clone(), block })
    }

    /// Where a block begins, in bytes from the beginning of the segment.
    pub fn place(&self, block: usize) -> Option<usize> {
        self.blocks.get(block).map(|block| block.place)
    }

    pub fn is_claimed(&self, block: usize) -> bool {
        self.blocks.get(block).is_none_or(|block| block.is_claimed.load(Ordering::Acquire))
    }

    /// Where numbers lie in this segment, in bytes from its beginning; `None` if they lie elsewhere.
    pub fn place_of(&self, numbers: &[f32]) -> Option<usize> {
        let from = (numbers.as_ptr() as usize).checked_sub(self.mapping.start.as_ptr() as usize)?;
        (from + size_of_val(numbers) <= self.mapping.len).then_some(from)
    }
}

/// A block of this process's segment, which nobody else in this process uses. It is returned when it is dropped.
pub struct Claim {
    of: Arc<OwnSegment>,
    block: usize,
}

impl Claim {
    fn block(&self) -> &Block {
        &self.of.blocks[self.block]
    }

    /// Where the block begins, in bytes from the beginning of the segment.
    pub fn place(&self) -> usize {
        self.block().place
    }

    /// How many numbers the block has.
    pub fn len(&self) -> usize {
        self.block().len / size_of::<f32>()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first numbers of the block, to read; panics if it has fewer.
    pub fn as_slice(&self, len: usize) -> &[f32] {
        let start = self.start(len);
        // SAFETY: as in `numbers`; nobody writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The first numbers of the block; panics if it has fewer.
    pub fn numbers(&mut self, len: usize) -> &mut [f32] {
        let start = self.start(len);
        // SAFETY: the numbers lie in the block (`start`), every bit pattern is a number, and only this claim gives access to the
        // block in this process. Other processes read it only between being told of it and telling that they have read it, and
        // nobody writes in that time.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// The first numbers of the block, to be made a vector. The block is returned with it.
    pub fn into_lent(self, len: usize) -> Lent {
        let start = self.start(len);
        // SAFETY: as in `numbers`; the owner of the memory is the claim, which holds the mapping.
        unsafe { Lent::writable(start, len, self) }
    }

    fn start(&self, len: usize) -> NonNull<f32> {
        assert!(len <= self.len(), "a block is long enough for what it is claimed for");
        self.of.mapping.at(self.place(), len).expect("blocks lie in their segment")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.block().is_claimed.store(false, Ordering::Release);
    }
}

/// A segment of another process of this host, mapped for reading.
pub struct PeerSegment {
    fd: OwnedFd,
    mapping: Mapping,
}

impl PeerSegment {
    /// Maps a segment that a peer has passed, if it has the length that all members' segments have, and the seals.
    pub fn new(fd: OwnedFd, bytes: usize) -> Result<Arc<PeerSegment>, SegmentProblem> {
        let found = fstat(&fd).map_err(io::Error::from)?.st_size as u64;
        // Only memory can be sealed: for other files this fails.
        let has = fcntl_get_seals(&fd).map_err(io::Error::from)?;
        if found != bytes as u64 {
            return Err(SegmentProblem::Length { found, expected: bytes });
        }
        if !has.contains(seals()) {
            return Err(SegmentProblem::Seals);
        }
        let mapping = Mapping::new(fd.as_fd(), bytes, ProtFlags::READ)?;
        Ok(Arc::new(PeerSegment { fd, mapping }))
    }

    /// A word of the part for notices; everything that its owner wrote before it wrote this word is seen after it. 0 if it lies outside.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        let words = self.mapping.words(self.mapping.len);
        let word = words.get(index).map_or(0, |word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        word
    }

    /// Numbers, for a moment; `None` if they do not lie in the segment.
    pub fn slice(&self, place: usize, len: usize) -> Option<&[f32]> {
        let start = self.mapping.at(place, len)?;
        // SAFETY: as for `numbers`, while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// Numbers that are read where they lie, for as long as somebody needs them; `None` if they do not lie in the segment.
    pub fn numbers(self: &Arc<Self>, place: usize, len: usize) -> Option<Lent> {
        let start = self.mapping.at(place, len)?;
        // SAFETY: the numbers lie in the mapping, which the owner of the lent memory holds; the seals keep them there, and every bit
        // pattern is a number. The peer does not write what it has told of until it knows that it has been read; if it did, the numbers
        // would be other numbers.
        Some(unsafe { Lent::new(start, len, self.clone()) })
    }
}

/// Pieces of several segments, mapped side by side for reading: the chunks of a sum as one vector.
pub struct Gallery(Mapping);

/// A piece of a segment, in bytes.
pub struct Piece<'a> {
    pub of: Segment<'a>,
    pub place: usize,
    pub bytes: usize,
}

pub enum Segment<'a> {
    Own(&'a OwnSegment),
    Peer(&'a PeerSegment),
}

impl Gallery {
    /// Maps the pieces. Fails if one does not lie in its segment, or does not begin and end at a page.
    pub fn new(pieces: &[Piece<'_>]) -> io::Result<Arc<Gallery>> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let total = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.bytes));
        let len = total.filter(|len| *len > 0).ok_or_else(wrong)?;
        let (nothing, private) = (ProtFlags::empty(), MapFlags::PRIVATE);
        // SAFETY: the system chooses an address where nothing is mapped; the pieces then replace what is mapped here.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, nothing, private) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let gallery = Gallery(Mapping { start, len });
        let mut at = 0;
        for Piece { of, place, bytes } in pieces.iter().filter(|piece| piece.bytes > 0) {
            let (fd, mapping) = match of {
                Segment::Own(own) => (own.fd.as_fd(), &own.mapping),
                Segment::Peer(peer) => (peer.fd.as_fd(), &peer.mapping),
            };
            let is_inside = place.checked_add(*bytes).is_some_and(|end| end <= mapping.len);
            if !is_inside || !place.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
                return Err(wrong());
            }
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: `at` and `bytes` are multiples of a page and lie in the range that was just reserved, which nobody else knows.
            unsafe {
                let at = gallery.0.start.add(at).as_ptr().cast();
                mmap(at, *bytes, ProtFlags::READ, flags, fd, *place as u64)?;
            }
            at += bytes;
        }
        Ok(Arc::new(gallery))
    }

    /// The first numbers, to be made one vector. It holds the block of this process that is mapped here, so that nobody writes to it; `Err` if
    /// the gallery is shorter.
    pub fn numbers(self: &Arc<Self>, len: usize, own: Claim) -> Result<Lent, Claim> {
        let Some(start) = self.0.at(0, len) else { return Err(own) };
        // SAFETY: all numbers lie in the mapping, which the owner of the lent memory holds; each piece lies in a sealed segment. This
        // process does not write to its piece while the claim is held, and peers write to theirs as in `PeerSegment::numbers`.
        Ok(unsafe { Lent::new(start, len, (self.clone(), own)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vector;

    fn passed(own: &OwnSegment) -> OwnedFd {
        own.descriptor().try_clone_to_owned().expect("a descriptor can be copied")
    }

    #[test]
    fn a_peer_reads_what_its_owner_writes_and_nothing_outside_of_the_segment() {
        let own = OwnSegment::new(100, &[PAGE, 3 * PAGE]).expect("it can be made");
        assert_eq!(own.bytes(), 5 * PAGE);
        let peer = PeerSegment::new(passed(&own), own.bytes()).expect("it is well formed");

        own.words()[3].store(7, Ordering::Release);
        let mut vector = Vector::from(own.claim(1).expect("it is free").into_lent(1000));
        vector.fill(2.5);

        assert_eq!((peer.word(3), peer.word(10_000_000)), (7, 0));
        let place = own.place_of(&vector).expect("it lies there");
        let read = Vector::from(peer.numbers(place, 1000).expect("it lies there"));
        assert_eq!(read, vector);
        assert_eq!(own.place_of(&[1.0]), None);
        for (place, len) in [(place + 2, 1), (5 * PAGE, 1), (4 * PAGE, 1025), (8, usize::MAX / 2)] {
            assert!(peer.numbers(place, len).is_none(), "{len} numbers at {place}");
        }
    }

    #[test]
    fn a_block_has_one_user_at_a_time() {
        let own = OwnSegment::new(8, &[PAGE]).expect("it can be made");
        let vector = own.claim(0).expect("it is free").into_lent(10);
        assert!(own.claim(0).is_none() && own.is_claimed(0));
        drop(vector);
        assert!(own.claim(0).is_some());
        assert!(own.claim(1).is_none() && own.is_claimed(1), "there is no such block");
    }

    #[test]
    fn descriptors_that_could_shrink_or_be_written_are_refused() {
        let own = OwnSegment::new(8, &[PAGE]).expect("it can be made");
        let wrong = PeerSegment::new(passed(&own), own.bytes() + 1).err().expect("another length");
        assert!(matches!(wrong, SegmentProblem::Length { .. }));

        for add in [SealFlags::empty(), SealFlags::SHRINK | SealFlags::GROW] {
            let fd = memfd_create("loose", MemfdFlags::ALLOW_SEALING).expect("it can be made");
            ftruncate(&fd, PAGE as u64).expect("it can grow");
            fcntl_add_seals(&fd, add).expect("it can be sealed");
            assert!(matches!(PeerSegment::new(fd, PAGE), Err(SegmentProblem::Seals)));
        }
        let file = std::fs::File::open("/proc/self/exe").expect("this program is a file");
        assert!(matches!(PeerSegment::new(file.into(), PAGE), Err(SegmentProblem::System(_))));
    }

    #[test]
    fn others_cannot_write_a_segment_nor_shrink_it() {
        let own = OwnSegment::new(8, &[PAGE]).expect("it can be made");
        let fd = passed(&own);
        assert!(ftruncate(&fd, 0).is_err());
        assert!(Mapping::new(fd.as_fd(), PAGE, ProtFlags::READ | ProtFlags::WRITE).is_err());
        assert!(rustix::io::write(&fd, b"x").is_err());
    }

    #[test]
    fn chunks_of_several_segments_are_one_vector() {
        let segments: Vec<_> =
            (0..3).map(|_| OwnSegment::new(8, &[2 * PAGE]).expect("it can be made")).collect();
        let own = &segments[0];
        let peers: Vec<_> = segments[1..]
            .iter()
            .map(|it| PeerSegment::new(passed(it), it.bytes()).expect("it is well formed"))
            .collect();
        let mut claims: Vec<Claim> =
            segments.iter().map(|it| it.claim(0).expect("it is free")).collect();
        for (i, claim) in claims.iter_mut().enumerate() {
            claim.numbers(1024).fill(i as f32);
        }
        let place = claims[0].place();
        let mut pieces = vec![Piece { of: Segment::Own(own), place, bytes: PAGE }];
        pieces.extend(peers.iter().map(|it| Piece { of: Segment::Peer(it), place, bytes: PAGE }));

        let gallery = Gallery::new(&pieces).expect("it can be mapped");
        let mine = claims.remove(0);
        let vector = gallery.numbers(2500, mine).ok().map(Vector::from).expect("it is long enough");

        let expected: Vec<f32> = (0..2500).map(|i| (i / 1024) as f32).collect();
        assert_eq!(vector, expected);
        assert!(own.claim(0).is_none(), "it is read");
        drop((gallery, vector));
        assert!(own.claim(0).is_some());
        for (place, bytes) in [(place + 4, PAGE), (place, 100), (3 * PAGE, PAGE)] {
            assert!(Gallery::new(&[Piece { of: Segment::Own(own), place, bytes }]).is_err());
        }
    }
}
