//! Meshes of one process, over real sockets.

use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use paceline_learn::Dice;
use paceline_runtime::codec::{Codec, Payload};
use paceline_runtime::coordination::Word;
use paceline_runtime::wire::{AnyOptimizerState, Published, Tail};

use super::*;
use crate::inbox::inbox;

struct Member {
    mesh: Mesh,
    inbox: Inbox,
    words: Receiver<Up>,
}

/// Members of one view whose links are made by and by.
fn members(n: u32, size: usize) -> (Vec<Member>, Arc<View>) {
    members_that(n, size, false)
}

fn members_that(n: u32, size: usize, shares_memory: bool) -> (Vec<Member>, Arc<View>) {
    let listeners: Vec<TcpListener> =
        (0..n).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("there is a port")).collect();
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(|it| it.local_addr().expect("it is bound")).collect();
    let view = View { incarnation: 1, number: 1, members: (0..n).map(WorkerId).collect() };
    let view = Arc::new(view);
    let start = |(me, listener): (u32, TcpListener)| {
        let ((events, inbox), (up, words)) = (inbox(), mpsc::channel());
        let mesh = Mesh::start(MeshConfig {
            me: WorkerId(me),
            secret: [1, 2],
            security: None,
            listener,
            shape: Shape { seed: 1, params: size, buffers: 0, codec: Codec::Dense },
            shares_memory,
            patience: Duration::from_secs(20),
            clock: Clock::from(Duration::ZERO),
            events,
            up,
        });
        let mesh = mesh.expect("it starts");
        for (who, address) in (0..).map(WorkerId).zip(&addresses) {
            mesh.give(Command::Peer { who, address: *address });
        }
        let (view, lost) = (view.clone(), Arc::default());
        mesh.give(Command::View { view, lost, closes: false });
        Member { mesh, inbox, words }
    };
    ((0..n).zip(listeners).map(start).collect(), view)
}

impl Member {
    fn sum(&mut self, view: &Arc<View>, number: u64, values: Vector) -> Vec<f32> {
        let payload = Arc::new(Payload::dense(values));
        let entry = Entry::Sum { payload, tail: Tail::default() };
        self.mesh.exchange(Ticket(number), view.clone(), number, entry);
        loop {
            let event = self.mesh.next(&self.inbox).expect("the mesh lives");
            if let Event::For { news: News::Summed { sum, .. }, .. } = event {
                return sum.gradient.sum.to_vec();
            }
        }
    }
}

#[test]
fn sums_of_every_length_follow_each_other_whoever_serves_the_links() {
    // Whole entries, short chunks, the longest that a worker serves, and one of the thread of the links, with two members and with more than cores.
    for (n, size) in [(2, 1000), (2, 20_000), (2, 262_144), (2, 300_001), (5, 1000), (5, 400_000)] {
        let (mut members, view) = members(n, size);
        std::thread::scope(|scope| {
            for (rank, member) in members.iter_mut().enumerate() {
                let view = &view;
                scope.spawn(move || {
                    for number in 1..=20 {
                        let value = |i: usize, rank: usize| (i % 89 + rank) as f32 * 0.37;
                        let mine = (0..size).map(|i| value(i, rank)).collect();
                        let sum = member.sum(view, number, mine);
                        let expected =
                            |i| (1..n as usize).fold(value(i, 0), |x, r| x + value(i, r));
                        assert!(sum.iter().enumerate().all(|(i, x)| *x == expected(i)));
                        if number % 7 == rank as u64 {
                            // Now and then a member is late, and the others sleep.
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
        });
    }
}

fn near<T>(member: &Member, look: impl FnOnce(&Near) -> T) -> T {
    let (_, exchanges) = member.mesh.links.as_ref().expect("they are served here");
    look(exchanges.lock().near.as_ref().expect("it shares memory"))
}

/// By so much a member is late for whom the others sleep.
const LATE: Duration = Duration::from_millis(5);

/// Adds a few times; in each exchange another member is late.
fn add_in_turns(
    members: &mut [Member],
    view: &Arc<View>,
    numbers: RangeInclusive<u64>,
    late: Duration,
) {
    std::thread::scope(|scope| {
        for (rank, member) in members.iter_mut().enumerate() {
            let numbers = numbers.clone();
            scope.spawn(move || {
                for number in numbers {
                    if number % view.members.len() as u64 == rank as u64 {
                        std::thread::sleep(late);
                    }
                    let sum = member.sum(view, number, Vector::filled(1.0, 1000));
                    assert_eq!(sum[999], view.members.len() as f32);
                }
            });
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn members_of_one_host_wake_each_other_also_when_they_stop_looking() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut members, crowd) = members_that(cores as u32 + 1, 1000, true);
    while !members.iter().all(|member| member.mesh.is_near(&crowd)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (done, heard) = mpsc::channel();
    std::thread::spawn(move || {
        // Each has a core and looks; then there is one member more than cores, and all sleep; and again.
        let few = View { number: 2, members: crowd.members[..cores].to_vec(), ..*crowd };
        add_in_turns(&mut members[..cores], &Arc::new(few), 1..=9, LATE);
        let crowd = View { number: 3, ..(*crowd).clone() };
        add_in_turns(&mut members, &Arc::new(crowd), 10..=19, LATE);
        let few =
            View { number: 4, members: (0..cores as u32).map(WorkerId).collect(), incarnation: 1 };
        add_in_turns(&mut members[..cores], &Arc::new(few), 20..=40, LATE);
        let _ = done.send(());
    });
    heard.recv_timeout(Duration::from_secs(20)).expect("nobody waits for ever");
}

/// A member that looked for the last sum did not ask to be woken. It has left the view since, and means to look no more.
#[cfg(target_os = "linux")]
#[test]
fn a_member_that_has_left_does_not_fill_the_boards_of_those_that_stay() {
    let (mut members, all) = members_that(3, 1000, true);
    while !members.iter().all(|member| member.mesh.is_near(&all)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    near(&members[2], |near| near.wants_bell(false));
    let stay = View { number: 2, members: all.members[..2].to_vec(), ..*all };
    add_in_turns(&mut members[..2], &Arc::new(stay), 1..=2000, Duration::ZERO);
    let posted = near(&members[0], Near::posted);
    assert!(posted > 200, "only {posted} of 2,000 sums were told by notices");
}

/// Members of one host in views that follow each other, who begin to read each other's memory at any time, compute for a while between two sums
/// and use their memory again at once. `SOAK_SECONDS=60 cargo test --release -p paceline-net --lib views_that_follow` looks for longer.
#[cfg(target_os = "linux")]
#[test]
fn sums_are_right_in_views_that_follow_each_other() {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|it| it.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(2));
    let mut seed = 0;
    while seed == 0 || Instant::now() < until {
        let size = [1000, 20_000, 10, 300_001, 262_144][seed as usize % 5];
        let mut dice = Dice::keyed(&[seed, 4]);
        let (mut members, all) = members_that(3, size, true);
        while dice.below(4) > 0 && !members.iter().all(|member| member.mesh.is_near(&all)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut first = 1;
        for number in 2..20 {
            let ranks = [vec![0, 1, 2], vec![0, 1], vec![1, 2], vec![0, 2]];
            let ranks = &ranks[dice.below(4) as usize];
            let of = ranks.iter().map(|rank| WorkerId(*rank)).collect();
            let view = Arc::new(View { number, members: of, ..*all });
            let numbers = first..=first + dice.below(30);
            first = numbers.end() + 1;
            let add = |rank: u32, member: &mut Member, number: u64| {
                let vector = |rank: u32| (rank + 1) as f32 * number as f32;
                let sum = member.sum(&view, number, Vector::filled(vector(rank), size));
                let expected = view.members.iter().fold(0.0, |sum, who| sum + vector(who.0));
                sum.iter().all(|x| *x == expected)
            };
            // They are counted: others would wait for ever for a member that panics.
            let wrong = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for (rank, member) in (0..).zip(&mut members) {
                    member.mesh.hand_back();
                    let (numbers, wrong, add) = (numbers.clone(), &wrong, &add);
                    let mut dice = Dice::keyed(&[seed, number, rank.into()]);
                    let takes_part = ranks.contains(&rank);
                    scope.spawn(move || {
                        for number in numbers.filter(|_| takes_part) {
                            compute(&mut dice);
                            let is_right = add(rank, member, number);
                            wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(wrong.into_inner(), 0, "wrong sums with seed {seed} in {view:?}");
        }
        for word in members.iter().flat_map(|member| member.words.try_iter()) {
            assert!(!matches!(word, Up::Word(Word::Suspect { .. })), "seed {seed}: all are honest");
        }
        seed += 1;
    }
}

/// Most members are there at once, some sleep, and some look for longer.
fn compute(dice: &mut Dice) {
    let (kind, time) = (dice.below(12), Duration::from_micros(dice.below(300)));
    let began = Instant::now();
    match kind {
        0 => std::thread::sleep(3 * time),
        1..=5 => {
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        _ => {}
    }
}

#[test]
fn links_close_with_their_mesh_though_somebody_can_still_give_it_commands() {
    let (mut members, view) = members(2, 1000);
    std::thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(|| member.sum(&view, 1, Vector::zeros(1000)));
        }
    });
    let handle = members[0].mesh.handle();
    // It has nothing to wait for.
    members[1].mesh.hand_back();

    drop(members.remove(0));

    let word = members[0].words.recv_timeout(Duration::from_secs(10));
    let suspected = Word::Suspect { peer: WorkerId(0), view: 1 };
    assert!(matches!(word, Ok(Up::Word(word)) if word == suspected));
    handle.give(Command::Published);
}

/// Links that are made, so that what follows goes over them.
fn meet(members: &mut [Member], view: &Arc<View>, size: usize) {
    std::thread::scope(|scope| {
        for member in members {
            scope.spawn(|| member.sum(view, 1, Vector::zeros(size)));
        }
    });
}

#[test]
fn a_worker_that_enters_a_sum_and_then_ends_still_answers_reads() {
    let (mut members, view) = members(2, 1000);
    meet(&mut members, &view, 1000);
    let (reign, version, done) = (0, 0, Arc::default());
    let (params, optimizer) = (Arc::new(Vector::filled(2.5, 1000)), AnyOptimizerState::default());
    let published = Published { params, optimizer, reign, version, done };
    members[0].mesh.shelves.publish(Shelf::Replica, published);
    let entry = Entry::Sum {
        payload: Arc::new(Payload::dense(Vector::zeros(1000))),
        tail: Tail::default(),
    };

    // It enters on its own thread, and never waits for the sum.
    members[0].mesh.exchange(Ticket(2), view, 2, entry);
    members[0].mesh.hand_back();

    let (to, found) = mpsc::channel();
    let (of, shelf) = (vec![WorkerId(0)], Shelf::Replica);
    members[1].mesh.give(Command::Collect { of, shelf, to });
    let found = found.recv_timeout(Duration::from_secs(10)).expect("it answers");
    assert_eq!(found[0][999], 2.5);
}

#[test]
fn what_was_said_before_the_end_arrives_whole() {
    // Longer than a turn of a link, shorter than what the system keeps.
    const SIZE: usize = 900_000;
    let (mut members, view) = members(2, SIZE);
    meet(&mut members, &view, SIZE);
    let replica = Arc::new(Vector::filled(1.5, SIZE));
    let letter = Letter::Part { samples: 1, parts: 2, at: Duration::ZERO, replica };

    let first = members.remove(0);
    first.mesh.give(Command::Send { to: WorkerId(1), letter: Arc::new(letter) });
    drop(first);

    let (done, heard) = mpsc::channel();
    let second = members.remove(0);
    std::thread::spawn(move || drop(done.send(second.mesh.next(&second.inbox))));
    let event = heard.recv_timeout(Duration::from_secs(10)).expect("it arrives");
    let Some(Event::For { news: News::Letter { letter, .. }, .. }) = event else {
        panic!("a letter was expected")
    };
    assert!(matches!(*letter, Letter::Part { replica, .. } if replica.len() == SIZE));
}
