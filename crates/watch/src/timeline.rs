//! Worker timelines: when each worker computes, one row per worker, as text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

use crate::grid::Grid;
use crate::table::{count, duration};

/// Further workers are counted, but get no row.
const WORKERS_MAX: usize = 2048;

/// The opening lasts until a worker has committed this many rounds.
const OPENING_ROUNDS: u64 = 12;
/// The fine grid covers the time until a worker has committed this many rounds.
const FINE_ROUNDS: u64 = 36;

const CELLS: usize = 1024;
const FINE_CELLS: usize = 2048;

/// A smaller busy fraction may be an artifact of the grid's resolution.
const SOME: f64 = 1.0 / 8.0;

/// Reads a journal into rows of busy time, to be drawn as text or as bars. Memory use does not grow with
/// the length of the run.
///
/// A gradient is recorded when it ends, so a gradient that is interrupted by a crash is drawn as waiting.
#[derive(Clone, Debug)]
pub struct Timeline {
    rows: BTreeMap<WorkerId, Row>,
    /// The whole run, in cells that widen as it gets longer.
    whole: Grid,
    /// The first rounds, in cells fine enough to show single gradients.
    fine: Grid,
    opening_end: Option<u64>,
    workers_unseen: usize,
    newest: Option<WorkerId>,
    now: u64,
    /// When the first line was recorded: later than 0 in a run that was resumed. All other times count from here.
    origin: u64,
    keeping_one_in: u64,
}

/// The history of one worker; ids are never reused. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Its row in the grids.
    index: usize,
    joined: Option<u64>,
    gone: Option<u64>,
    crashed: Option<u64>,
    rounds: u64,
}

/// The state of a worker during one column of the drawing.
pub(crate) enum Cell {
    Absent,
    Crash,
    /// The fraction of the time that it computed.
    Busy(f64),
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline {
            rows: BTreeMap::new(),
            whole: Grid::new(CELLS),
            fine: Grid::new(FINE_CELLS),
            opening_end: None,
            workers_unseen: 0,
            newest: None,
            now: 0,
            origin: 0,
            keeping_one_in: 1,
        }
    }
}

impl Timeline {
    /// The number of workers so far.
    pub fn workers(&self) -> usize {
        self.rows.len() + self.workers_unseen
    }

    /// The time of the newest line.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.origin.saturating_add(self.now))
    }

    /// How long the run has been drawn: shorter than `now()` if it was resumed.
    pub fn length(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    /// Whether the rows begin where the run was resumed.
    pub fn is_resumed(&self) -> bool {
        self.origin > 0
    }

    /// The duration of the first dozen rounds.
    pub fn opening(&self) -> Duration {
        Duration::from_nanos(self.opening_end.unwrap_or(self.now))
    }

    /// The time up to which a drawing can show single gradients; a few times the opening.
    pub fn fine(&self) -> Duration {
        Duration::from_nanos(self.fine.end())
    }

    /// One line per worker with a scale and a legend, from the start to `until` (default: the newest line).
    pub fn text(&self, columns: usize, workers_max: usize, until: Option<Duration>) -> String {
        let columns = columns.max(1);
        let mut text = String::new();
        for (who, cells) in self.rows(columns, workers_max, self.until(until)) {
            let line =
                format!("{:>4} {}", who.0, cells.iter().map(Cell::symbol).collect::<String>());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let end = duration(self.until(until) / 1e9);
        let _ = writeln!(text, "     0{end:>width$}", width = columns.saturating_sub(1));
        text.push_str("     # computing   + partly   . waiting   x crash\n");
        match self.workers() - self.rows.len().min(workers_max) {
            0 => {}
            1 => text.push_str("     and 1 more worker\n"),
            more => drop(writeln!(text, "     and {} more workers", count(more as u64))),
        }
        if self.keeping_one_in > 1 {
            let one_in = count(self.keeping_one_in);
            let _ = writeln!(text, "     estimated: the journal records one gradient in {one_in}");
        }
        text
    }

    /// Compute time as a fraction of the time as a member, by worker.
    pub fn utilization(&self) -> BTreeMap<WorkerId, f64> {
        let part = |row: &Row| {
            let lived = row.gone.unwrap_or(self.now).saturating_sub(row.joined?);
            let busy = self.whole.total(row.index) as f64;
            Some(if lived > 0 { (busy / lived as f64).min(1.0) } else { 0.0 })
        };
        self.rows.iter().filter_map(|(who, row)| Some((*who, part(row)?))).collect()
    }

    pub(crate) fn until(&self, until: Option<Duration>) -> f64 {
        until.map_or(self.now, nanoseconds) as f64
    }

    /// The rows of the first `workers_max` workers, divided into columns.
    pub(crate) fn rows(
        &self,
        columns: usize,
        workers_max: usize,
        until: f64,
    ) -> impl Iterator<Item = (WorkerId, Vec<Cell>)> {
        let rows = self.rows.iter().take(workers_max);
        rows.map(move |(who, row)| (*who, self.cells(row, columns, until)))
    }

    fn cells(&self, row: &Row, columns: usize, until: f64) -> Vec<Cell> {
        // Above 0, so that an empty time range has columns, too.
        let until = until.max(1.0);
        let fine = until <= self.fine.end() as f64;
        let grid = if fine { &self.fine } else { &self.whole };
        let joined = row.joined.map_or(f64::INFINITY, |at| at as f64);
        let gone = row.gone.unwrap_or(self.now) as f64;
        let crash = row.crashed.map(|at| at as f64).filter(|at| *at <= until);
        let crash = crash.map(|at| ((at * columns as f64 / until) as usize).min(columns - 1));
        let cell = |column: usize| {
            if crash == Some(column) {
                return Cell::Crash;
            }
            let edge = |column: usize| until * column as f64 / columns as f64;
            let (from, to) = (edge(column).max(joined), edge(column + 1).min(gone));
            // A tiny overlap results from rounding the column edges.
            if to - from <= 1e-6 * until / columns as f64 {
                return Cell::Absent;
            }
            Cell::Busy(grid.busy(row.index, from, to) / (to - from))
        };
        (0..columns).map(cell).collect()
    }

    /// The worker's row, created if necessary; `None` if there are too many workers.
    fn row(&mut self, who: WorkerId) -> Option<&mut Row> {
        if !self.rows.contains_key(&who) {
            if self.rows.len() == WORKERS_MAX {
                // Ids are assigned in increasing order, so an id above all others is a new worker.
                if self.newest < Some(who) {
                    self.newest = Some(who);
                    self.workers_unseen += 1;
                }
                return None;
            }
            let index = self.rows.len();
            self.rows.insert(who, Row { index, ..Row::default() });
            self.whole.add_row();
            self.fine.add_row();
            self.newest = self.newest.max(Some(who));
        }
        self.rows.get_mut(&who)
    }

    fn end(&mut self, who: WorkerId, at: u64) {
        if let Some(row) = self.row(who) {
            row.gone = Some(row.gone.map_or(at, |gone| gone.min(at)));
        }
    }

    fn computed(&mut self, who: WorkerId, since: u64, at: u64) {
        let Some(row) = self.row(who) else { return };
        // Only members compute, even if this journal does not contain their first view.
        row.joined = Some(row.joined.map_or(since, |joined| joined.min(since)));
        let (index, times) = (row.index, self.keeping_one_in);
        self.whole.add(index, since, at, times);
        self.fine.add(index, since, at, times);
    }

    fn committed(&mut self, who: WorkerId, at: u64) {
        let Some(row) = self.row(who) else { return };
        row.rounds += 1;
        match row.rounds {
            OPENING_ROUNDS => drop(self.opening_end.get_or_insert(at)),
            FINE_ROUNDS => self.fine.freeze(at),
            _ => {}
        }
    }

    /// A run is resumed that was started again: its rows begin here, or continue if the journal has those of the run
    /// before. Its workers have the same ids.
    fn resume(&mut self, at: u64) {
        if self.rows.is_empty() {
            self.origin = at;
        }
        self.rows.values_mut().for_each(|row| row.gone = None);
    }

    fn enter_view(&mut self, members: &[WorkerId], at: u64) {
        for who in members {
            if let Some(row) = self.row(*who) {
                row.joined.get_or_insert(at);
            }
        }
        for (who, row) in &mut self.rows {
            if row.joined.is_some() && row.gone.is_none() && members.binary_search(who).is_err() {
                row.gone = Some(at);
            }
        }
    }
}

impl Reader for Timeline {
    fn read(&mut self, line: &Line) {
        if matches!(line.record, Record::Resumed { past: Some(_), .. }) {
            self.resume(nanoseconds(line.at));
        }
        let origin = self.origin;
        let since_origin = |time: Duration| nanoseconds(time).saturating_sub(origin);
        let at = since_origin(line.at);
        self.now = self.now.max(at);
        match &line.record {
            Record::Started { who } => drop(self.row(*who)),
            Record::View { members, .. } => self.enter_view(members, at),
            Record::Computed { who, since, .. } => self.computed(*who, since_origin(*since), at),
            Record::Committed { who, .. } => self.committed(*who, at),
            Record::Left { who } | Record::Finished { who, .. } => self.end(*who, at),
            Record::Crashed { who } => {
                self.end(*who, at);
                if let Some(row) = self.row(*who) {
                    row.crashed = Some(at);
                }
            }
            Record::Thinned { keeping_one_in } => self.keeping_one_in = *keeping_one_in,
            _ => {}
        }
    }
}

impl Cell {
    fn symbol(&self) -> char {
        match self {
            Cell::Absent => ' ',
            Cell::Crash => 'x',
            Cell::Busy(part) if *part >= 0.5 => '#',
            Cell::Busy(part) if *part >= SOME => '+',
            Cell::Busy(_) => '.',
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(timeline: &mut Timeline, milliseconds: u64, record: Record) {
        timeline.read(&Line { at: Duration::from_millis(milliseconds), record });
    }

    fn computed(timeline: &mut Timeline, who: u32, from: u64, to: u64) {
        let since = Duration::from_millis(from);
        read(
            timeline,
            to,
            Record::Computed { who: WorkerId(who), since, samples: 1, round: None, spans: None },
        );
    }

    fn view(timeline: &mut Timeline, at: u64, number: u64, members: &[u32]) {
        let members = members.iter().copied().map(WorkerId).collect();
        read(timeline, at, Record::View { number, members, reason: "a test".to_owned() });
    }

    fn resumed() -> Record {
        Record::Resumed {
            round: 3,
            version: 3,
            spans: Default::default(),
            loss_first: None,
            loss_last: None,
            samples_total: None,
            past: Some(Default::default()),
        }
    }

    #[test]
    fn the_rows_of_a_resumed_run_begin_where_it_was_resumed() {
        let mut timeline = Timeline::default();
        read(&mut timeline, 900, resumed());
        view(&mut timeline, 900, 1, &[0, 1]);
        computed(&mut timeline, 0, 900, 1000);

        assert!(timeline.is_resumed());
        assert_eq!(timeline.now(), Duration::from_millis(1000));
        assert_eq!(timeline.length(), Duration::from_millis(100));
        assert!(timeline.text(10, 2, None).starts_with("   0 ##########\n   1 ..........\n"));
    }

    /// The journal of a whole run, and of the one that resumed it with a worker less.
    #[test]
    fn the_rows_of_a_continued_journal_go_on() {
        let mut timeline = Timeline::default();
        view(&mut timeline, 0, 1, &[0, 1]);
        computed(&mut timeline, 0, 0, 500);
        for who in [WorkerId(0), WorkerId(1)] {
            read(&mut timeline, 500, Record::Finished { who, rounds: 1, fingerprint: 0 });
        }
        read(&mut timeline, 500, resumed());
        view(&mut timeline, 500, 1, &[0]);
        computed(&mut timeline, 0, 500, 1000);

        assert!(!timeline.is_resumed());
        assert!(timeline.text(10, 2, None).starts_with("   0 ##########\n   1 .....\n"));
    }

    #[test]
    fn a_row_is_drawn_from_the_first_view_to_the_end_of_membership() {
        let mut timeline = Timeline::default();
        (0..5).for_each(|who| read(&mut timeline, 0, Record::Started { who: WorkerId(who) }));
        view(&mut timeline, 0, 1, &[0, 1, 2, 3]);
        for round in 0..4 {
            let start = 100 * round;
            computed(&mut timeline, 0, start, start + 50);
            computed(&mut timeline, 1, start, start + 100);
        }
        computed(&mut timeline, 2, 0, 120);
        read(&mut timeline, 155, Record::Crashed { who: WorkerId(2) });
        computed(&mut timeline, 3, 0, 200);
        view(&mut timeline, 200, 2, &[0, 1, 3, 4]);
        computed(&mut timeline, 4, 210, 222);
        computed(&mut timeline, 4, 240, 400);
        read(&mut timeline, 300, Record::Left { who: WorkerId(3) });
        let fingerprint = 0;
        read(&mut timeline, 400, Record::Finished { who: WorkerId(0), rounds: 4, fingerprint });

        let text = timeline.text(40, 10, None);

        let expected = "
   0 #####.....#####.....#####.....#####.....
   1 ########################################
   2 ############...x
   3 ####################..........
   4                     .#+.################
     0                                 400 ms
     # computing   + partly   . waiting   x crash
";
        assert_eq!(format!("\n{text}"), expected);
    }

    #[test]
    fn utilization_is_compute_time_over_time_as_a_member() {
        let mut timeline = Timeline::default();
        view(&mut timeline, 100, 1, &[0, 1]);
        computed(&mut timeline, 0, 100, 150);
        computed(&mut timeline, 1, 100, 200);
        read(&mut timeline, 200, Record::Crashed { who: WorkerId(1) });
        read(&mut timeline, 300, Record::Over);

        let expected = [(WorkerId(0), 0.25), (WorkerId(1), 1.0)];
        assert_eq!(timeline.utilization(), BTreeMap::from(expected));
    }

    #[test]
    fn the_first_rounds_can_be_drawn_in_detail_after_a_long_run() {
        let mut timeline = Timeline::default();
        for round in 0..100_000 {
            for (who, busy) in [(0, 4), (1, 10), (2, 7)] {
                computed(&mut timeline, who, 12 * round, 12 * round + busy);
            }
            for who in 0..3 {
                let who = WorkerId(who);
                read(
                    &mut timeline,
                    12 * round + 12,
                    Record::Committed { who, round, fingerprint: None },
                );
            }
        }

        let zoomed = timeline.text(48, 2, Some(timeline.opening() / 3));
        let whole = timeline.text(48, 3, None);

        let expected = "
   0 ####........####........####........####........
   1 ##########..##########..##########..##########..
     0                                          48 ms
     # computing   + partly   . waiting   x crash
     and 1 more worker
";
        assert_eq!(format!("\n{zoomed}"), expected);
        let expected = "
   0 ++++++++++++++++++++++++++++++++++++++++++++++++
   1 ################################################
   2 ################################################
     0                                         20 min
     # computing   + partly   . waiting   x crash
";
        assert_eq!(format!("\n{whole}"), expected);
    }

    #[test]
    fn workers_without_a_row_are_counted_once() {
        let mut timeline = Timeline::default();

        for who in 0..3000 {
            read(&mut timeline, 0, Record::Started { who: WorkerId(who) });
            computed(&mut timeline, who, 0, 10);
        }

        assert_eq!(timeline.workers(), 3000);
        assert!(timeline.text(10, 1, None).contains("and 2,999 more workers"));
    }

    #[test]
    fn a_thinned_journal_is_drawn_as_an_estimate() {
        let mut timeline = Timeline::default();
        read(&mut timeline, 0, Record::Thinned { keeping_one_in: 10 });

        (0..1000).for_each(|i| computed(&mut timeline, 0, 1000 * i, 1000 * i + 80));
        read(
            &mut timeline,
            1_000_000,
            Record::Finished { who: WorkerId(0), rounds: 1, fingerprint: 0 },
        );

        let expected = "
   0 ####################
     0        16 min 40 s
     # computing   + partly   . waiting   x crash
     estimated: the journal records one gradient in 10
";
        assert_eq!(format!("\n{}", timeline.text(20, 1, None)), expected);
    }

    #[test]
    fn an_empty_journal_gives_a_scale_and_a_legend() {
        let expected = "
     0        0 s
     # computing   + partly   . waiting   x crash
";
        assert_eq!(format!("\n{}", Timeline::default().text(12, 5, None)), expected);
    }
}
