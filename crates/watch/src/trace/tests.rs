use super::*;
use crate::testing::{began, line, milliseconds, read_all, scratch, two_workers, view};

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).expect("the file is a complete JSON array")
}

fn traced(name: &str, lines: &[Line]) -> Vec<Value> {
    let path = scratch(name);
    let mut trace = Trace::create(&path, "a run").unwrap();
    read_all(&mut trace, lines);
    trace.finish().unwrap();

    let events = events(&path);
    std::fs::remove_file(path).unwrap();
    assert_in_order(&events);
    events
}

/// On every thread events are in order and slices do not overlap.
fn assert_in_order(events: &[Value]) {
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    for event in events {
        let (thread, phase) = (event["tid"].as_u64().unwrap_or(0), event["ph"].as_str().unwrap());
        if phase != "M" {
            let begin = event["ts"].as_f64().unwrap();
            let end = ends.entry(thread).or_default();
            assert!(begin >= *end - 1e-6, "{event} begins before {end}");
            *end = begin + event["dur"].as_f64().unwrap_or(0.0);
        }
    }
}

/// The slices of a worker: name, start and end in milliseconds.
fn slices(events: &[Value], who: u32) -> Vec<(&str, f64, f64)> {
    let is_its = |event: &&Value| event["ph"] == "X" && event["tid"] == who + 1;
    let slice = |event: &Value| {
        let (begin, length) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        (begin / 1000.0, (begin + length) / 1000.0)
    };
    events
        .iter()
        .filter(is_its)
        .map(|event| (event["name"].as_str().unwrap(), slice(event).0, slice(event).1))
        .collect()
}

#[test]
fn a_round_consists_of_compute_wait_and_exchange() {
    let events = traced("round.json", &two_workers(10));

    let first = [("compute", 0.0, 4.0), ("wait", 4.0, 9.0), ("exchange", 9.0, 10.0)];
    assert_eq!(slices(&events, 0)[..3], first);
    let slowest = [("compute", 0.0, 9.0), ("exchange", 9.0, 10.0), ("compute", 10.0, 19.0)];
    assert_eq!(slices(&events, 1)[..3], slowest);
    let wait = events.iter().find(|event| event["name"] == "wait").expect("a worker waits");
    assert_eq!(wait["args"]["for"], 1);
    for (name, many) in [("members", 1), ("training loss", 10), ("score", 2), ("thread_name", 3)] {
        let count = events.iter().filter(|event| event["name"] == name).count();
        assert_eq!(count, many, "{name}");
    }
}

#[test]
fn changes_of_membership_are_instant_events() {
    let mut lines = two_workers(2);
    lines.push(line(23, Record::Crashed { who: WorkerId(1) }));
    lines.push(line(25, view(2, &[0])));

    let events = traced("moments.json", &lines);

    let names = ["crashed", "view 1: a test", "view 2: a test"];
    for name in names {
        assert!(events.iter().any(|event| event["ph"] == "i" && event["name"] == name), "{name}");
    }
}

#[test]
fn overlapping_records_give_disjoint_slices() {
    let who = WorkerId(0);
    let lines = [
        line(0, began(false)),
        line(
            10,
            Record::Computed { who, since: milliseconds(0), samples: 1, round: None, spans: None },
        ),
        line(12, Record::Waited { who, whom: WorkerId(1), since: milliseconds(5) }),
        line(
            11,
            Record::Computed { who, since: milliseconds(9), samples: 1, round: None, spans: None },
        ),
        line(13, Record::Committed { who, round: 1, fingerprint: None }),
    ];

    let events = traced("overlap.json", &lines);

    let expected = [("compute", 0.0, 10.0), ("wait", 10.0, 12.0), ("update", 12.0, 13.0)];
    assert_eq!(slices(&events, 0), expected);
}

#[test]
fn a_killed_run_leaves_a_complete_array() {
    let path = scratch("killed.json");
    let mut trace = Trace::create(&path, "a run").unwrap();

    read_all(&mut trace, &two_workers(2000));
    // Without `finish`: a killed process leaves the file as it is now.
    let left = events(&path);
    trace.finish().unwrap();

    let all = events(&path);
    std::fs::remove_file(path).unwrap();
    assert!(left.len() > 5000 && left.len() < all.len(), "{} of {}", left.len(), all.len());
    assert_eq!(left, all[..left.len()]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_at_the_end_and_does_not_stop_the_run() {
    let mut trace = Trace::create(Path::new("/dev/full"), "a run").unwrap();

    read_all(&mut trace, &two_workers(2000));

    let error = trace.finish().unwrap_err();
    let expected = "the trace /dev/full is incomplete: No space left on device (os error 28)";
    assert_eq!(error.to_string(), expected);
}
