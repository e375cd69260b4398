//! How a thread looks for the next part of a sum before it sleeps. Waking it takes longer than a short sum.

use std::time::{Duration, Instant};

/// Whether to look for what comes next without sleeping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Looks {
    /// Every member can have a core of this machine to itself: looking holds up nobody, as a rule.
    Always,
    /// Members may have to share cores: they let each other run in between. `is_crowded`: all of them are on this machine, so that some do share.
    InTurns {
        is_crowded: bool,
    },
    No,
}

/// Members look in turns if the view has at most this many of them for each core. With more, a member waits longer for its turn than it
/// takes to be woken.
const IN_TURNS: usize = 4;

impl Looks {
    /// How members of a view look that has this many, if all of them were on one machine.
    pub fn of(members: usize, cores: usize) -> Looks {
        match members {
            n if n <= cores => Looks::Always,
            n if n <= IN_TURNS * cores => Looks::InTurns { is_crowded: false },
            _ => Looks::No,
        }
    }
}

/// How long a thread looks. A peer needs some of this time to write what it has to say.
const SPIN: Duration = Duration::from_micros(100);
/// How long a thread looks if a peer was late last time. That peer may be late because it had to be woken, as this one then is; if one of them
/// does not wait for the other, both wake each other in every exchange from then on. Nor does it look for less between two pieces of a long
/// vector: a peer may take longer than `SPIN` to write one, to read one and to add.
const SPIN_LATE: Duration = Duration::from_micros(400);
/// How long members look that let each other run in between. This holds up nobody, and a thread that must be woken waits longer than for its
/// turn.
const IN_TURNS_SPIN: Duration = Duration::from_micros(400);
/// After this time something else may hold up the peer, and may have this core if it needs one.
const ALONE: Duration = Duration::from_micros(30);

/// A thread that let others run and comes back later than this shares its core with another one. If there are as many cores as members, it
/// sleeps for a moment: the system looks for a free core when it wakes a thread, but leaves threads together that let each other run.
const SHARED: Duration = Duration::from_micros(10);

/// A thread that let others run in turns and comes back sooner than this found nobody who wanted its core.
const AT_ONCE: Duration = Duration::from_micros(2);
/// After this time without anybody who wants its core, a thread of a crowded machine sleeps: then the system moves somebody here who has to share
/// another core. It moves nobody as long as no core is free, so that three of four members may share one core of two for seconds, each of
/// which has to wait for the other two.
const UNSHARED: Duration = Duration::from_micros(10);

/// A thread that has its core to itself looks this often before it reads the clock, which takes longer than to look at a word of a peer.
const LOOKS: u32 = 16;

pub struct Look {
    /// How often it looks before it reads the clock again.
    left: u32,
    since: Instant,
    until: Instant,
    /// When another thread last had this core in between.
    shared: Instant,
}

impl Look {
    /// `was_slow`: a peer was late last time.
    pub fn begin(was_slow: bool) -> Look {
        let now = Instant::now();
        let until = now + if was_slow { SPIN_LATE } else { SPIN };
        Look { left: LOOKS, since: now, until, shared: now }
    }

    /// Something has come: while one part arrives the next is not far.
    pub fn again(&mut self) {
        let now = Instant::now();
        *self = Look { left: LOOKS, since: now, until: now + SPIN_LATE, shared: now };
    }

    /// Waits for a moment; returns whether to look once more.
    pub fn on(&mut self, looks: Looks) -> bool {
        if looks == Looks::Always && self.left > 0 {
            self.left -= 1;
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        let is_over = match looks {
            Looks::Always => now >= self.until,
            Looks::InTurns { .. } => now >= self.since + IN_TURNS_SPIN,
            Looks::No => true,
        };
        if is_over {
            return false;
        }
        match looks == Looks::Always && now < self.since + ALONE {
            true => self.left = LOOKS,
            false => std::thread::yield_now(),
        }
        match looks {
            Looks::Always if now.elapsed() >= SHARED => {
                std::thread::sleep(Duration::from_micros(1));
            }
            Looks::InTurns { .. } if now.elapsed() >= AT_ONCE => self.shared = Instant::now(),
            Looks::InTurns { is_crowded: true } => return now < self.shared + UNSHARED,
            _ => {}
        }
        true
    }
}
