//! Tests of scenarios made from measurements.

use super::*;
use crate::scenarios;

fn measured() -> Calibration {
    let spread = |median: f64| Spread::of(vec![0.9 * median, median, 1.2 * median]);
    let point = |(size, seconds)| Point { size, seconds: spread(seconds) };
    let gradients: Vec<Point> = [(4, 6e-5), (8, 1e-4), (16, 1.8e-4)].map(point).to_vec();
    let exchanges: Vec<Point> = [(4, 1e-4), (40_000, 1.4e-4)].map(point).to_vec();
    Calibration {
        processor: "a \"quoted\" processor\nof two lines".into(),
        cores: 2,
        model: "mlp".into(),
        data: "C:\\texts\\a.txt".into(),
        params: 10_000,
        batch: 16,
        workers: 4,
        gradient: Cost::through(&gradients),
        gradients,
        update: spread(5e-6),
        encoding: spread(2e-5),
        pause: spread(2.5e-5),
        members: 4,
        exchange: Cost::through(&exchanges),
        exchanges,
        handover: spread(1e-4 / 3.0),
    }
}

#[test]
fn a_written_scenario_is_read_back_unchanged() {
    for speeds in [&[][..], &[4.0, 4.0, 2.0, 1.0], &[3.0, 0.7]] {
        for workers in [1, 4, 9] {
            let scenario = measured().scenario(workers, speeds);

            let text = toml(&measured(), &scenario);

            assert_eq!(scenarios::parse("it", &text).expect(&text), scenario);
        }
    }
}

#[test]
fn extreme_measurements_give_valid_scenarios() {
    let nothing = Spread::of(vec![0.0]);
    let free = Cost { fixed: 0.0, each: 0.0 };
    let quick = Calibration {
        gradient: free,
        exchange: free,
        handover: nothing,
        encoding: nothing,
        pause: nothing,
        ..measured()
    };
    let slow = Cost { fixed: 1e4, each: 1e4 };
    let slow = Calibration { gradient: slow, exchange: slow, ..measured() };

    for calibration in [quick, slow] {
        for speeds in [&[][..], &[2.0, 1.0]] {
            assert!(calibration.scenario(2, speeds).check().is_ok(), "{calibration:?}");
        }
    }
}

#[test]
fn a_simulated_ring_takes_as_long_as_the_exchange_of_threads() {
    let calibration = measured();

    let network = calibration.scenario(4, &[]).network;

    for point in &calibration.exchanges {
        let bytes = point.size as f64 / 4.0 + (HEADER_BYTES + TAIL_BYTES) as f64;
        let ring = 6.0 * (network.latency + bytes / network.bytes_per_second);
        assert!((ring / point.seconds.median - 1.0).abs() < 1e-3, "{ring} of {point:?}");
    }
}

#[test]
fn emulated_workers_are_simulated_at_the_pace_of_the_threads() {
    let calibration = measured();

    let compute = calibration.scenario(4, &[4.0, 4.0, 2.0, 1.0]).compute;

    assert_eq!(Duration::from_secs_f64(compute.seconds_per_sample), calibration.pace(4));
    assert_eq!(compute.relative, [1.0, 1.0, 2.0, 4.0]);
    assert_eq!(compute.seconds_per_gradient, 0.0);
    let late = calibration.handover.median + calibration.housekeeping();
    assert!((compute.seconds_per_handover - late).abs() < 1e-8, "{compute:?}");
}

#[test]
fn the_time_between_gradients_without_the_update_is_housekeeping() {
    let alone = measured();

    assert!((alone.housekeeping() - 2e-5).abs() < 1e-9, "{}", alone.housekeeping());
    let pause = Spread::of(vec![1e-6]);
    assert_eq!(Calibration { pause, ..alone }.housekeeping(), 0.0);
}

#[test]
fn a_real_machine_gives_a_valid_scenario() {
    let job = Job { model: "softmax".into(), ..Job::default() };
    let prepared = job.prepare(3).expect("the job is valid");
    let mut messages = 0;

    let measured = Calibration::measure(&job, &prepared, &[2.0, 1.0], Duration::ZERO, &mut |_| {
        messages += 1;
    });

    let calibration = measured.expect("the job can be measured");
    let scenario = calibration.scenario(3, &[2.0, 1.0]);
    assert_eq!(messages, 6);
    let text = toml(&calibration, &scenario);
    assert_eq!(scenarios::parse("it", &text).expect(&text), scenario);
    let (compute, network) = (&scenario.compute, &scenario.network);
    for number in [
        compute.seconds_per_sample,
        compute.seconds_per_param,
        compute.seconds_per_handover,
        network.bytes_per_second,
    ] {
        assert!(number.is_finite() && number > 0.0, "{scenario:?}");
    }
}
