//! Metrics in Prometheus' text format (version 0.0.4): totals since the daemon started, and the last interval.

use std::fmt::Write;
use std::path::Path;

use nearpage_recording::Origin;

use crate::daemon::Report;
use crate::mover::Outcomes;

/// Totals, and the shares of the last interval.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Name of this host.
    host: String,
    intervals: u64,
    samples: u64,
    actions: u64,
    moved_back: u64,
    replications_interleaved: u64,
    outcomes: Outcomes,
    moved_bytes: u64,
    deciding_ns: u64,
    in_calls_ns: u64,
    longest_call_ns: u64,
    hot_pages: usize,
    given_up: u64,
    dropped: u64,
    without_node: u64,
    without_access: u64,
    local_share: Option<f64>,
    imbalance: f64,
    /// Messages that a collector of profiles received, and messages that it did not; `None` without a collector.
    profiles: Option<(u64, u64)>,
    /// Processes of the last interval.
    processes: Vec<ProcessMetrics>,
}

/// Metrics of a process.
#[derive(Clone, Debug, Default)]
struct ProcessMetrics {
    pid: u32,
    name: String,
    origin: Origin,
    lost_share: f64,
    local_share: f64,
}

impl ProcessMetrics {
    fn labels(&self) -> String {
        let mut labels = format!("{{pid=\"{}\",name=\"{}\"", self.pid, escaped(&self.name));
        let Origin { cgroup, job, pod } = &self.origin;
        for (label, value) in [("cgroup", cgroup), ("job_id", job), ("pod", pod)] {
            // Prometheus treats an empty label as absent, and uses the label `job` itself.
            if !value.is_empty() {
                let _ = write!(labels, ",{label}=\"{}\"", escaped(value));
            }
        }
        labels + "}"
    }
}

impl Metrics {
    /// Metrics of a daemon on the host with this name.
    pub fn of_host(host: String) -> Self {
        Self {
            host,
            ..Self::default()
        }
    }

    /// Adds an interval. `proc_root` (`/proc`) tells the cgroup, job and pod of a process.
    pub fn add(&mut self, report: &Report, proc_root: &Path) {
        self.intervals += 1;
        self.samples += report.entry.interval.observations.len() as u64;
        self.actions += report.entry.actions.len() as u64;
        self.outcomes.add(&report.outcomes);
        self.moved_bytes += report.moved_bytes;
        self.deciding_ns += report.deciding_ns;
        self.in_calls_ns += report.in_calls_ns;
        self.longest_call_ns = self.longest_call_ns.max(report.longest_call_ns);
        self.hot_pages = report.hot_pages;
        self.given_up = report.given_up;
        self.dropped = report.dropped;
        self.without_node = report.without_node;
        self.without_access = report.without_access;
        self.local_share = report.local_share();
        self.imbalance = report.imbalance();
        self.processes.clear();
        for process in &report.entry.processes {
            self.moved_back += u64::from(process.moved_back);
            self.replications_interleaved += process.replications_interleaved;
            self.processes.push(ProcessMetrics {
                pid: process.pid,
                name: process.name.clone(),
                origin: Origin::of(proc_root, &process.pid.to_string()),
                lost_share: f64::from(process.lost_per_1000) / 1000.0,
                local_share: f64::from(process.local_per_1000) / 1000.0,
            });
        }
    }

    /// Sets the numbers of profile messages that a collector received and did not receive.
    pub fn set_profiles(&mut self, sent: u64, lost: u64) {
        self.profiles = Some((sent, lost));
    }

    /// The text for a scrape.
    pub fn text(&self) -> String {
        let mut text = Text(String::new());
        let labels = format!(
            "{{host=\"{}\",version=\"{}\"}}",
            escaped(&self.host),
            env!("CARGO_PKG_VERSION")
        );
        text.metric("info", "gauge", "Where this daemon runs.", &[(labels, 1.0)]);
        self.write_decisions(&mut text);
        self.write_moves(&mut text);
        self.write_lost_samples(&mut text);
        if let Some((sent, lost)) = self.profiles {
            text.counter(
                "profile_messages_sent_total",
                "Messages of profiles that the collector got.",
                sent,
            );
            text.counter(
                "profile_messages_lost_total",
                "Messages of profiles that the collector did not take, or not in time.",
                lost,
            );
        }
        self.write_latest(&mut text);
        text.0
    }

    fn write_decisions(&self, text: &mut Text) {
        text.counter("intervals_total", "Decision intervals.", self.intervals);
        text.counter("samples_total", "Sampled accesses.", self.samples);
        text.counter(
            "actions_total",
            "Actions that the policy asked for.",
            self.actions,
        );
    }

    fn write_moves(&self, text: &mut Text) {
        let by_outcome: Vec<(String, f64)> = self
            .outcomes
            .by_reason()
            .map(|(reason, count)| (format!("{{outcome=\"{reason}\"}}"), count as f64))
            .into();
        text.metric(
            "pages_total",
            "counter",
            "Pages that were to move, by outcome.",
            &by_outcome,
        );
        text.counter(
            "moved_bytes_total",
            "Memory that moved; a huge page is one page.",
            self.moved_bytes,
        );
        text.counter(
            "replications_interleaved_total",
            "Replications that became interleaving.",
            self.replications_interleaved,
        );
        text.counter(
            "moved_back_total",
            "Times that a process was worse off and its pages went back.",
            self.moved_back,
        );
        text.metric(
            "decision_seconds_total",
            "counter",
            "Time in decisions.",
            &plain(self.deciding_ns as f64 / 1e9),
        );
        text.metric(
            "move_seconds_total",
            "counter",
            "Time in calls that moved pages.",
            &plain(self.in_calls_ns as f64 / 1e9),
        );
        text.metric(
            "longest_call_seconds",
            "gauge",
            "The longest call that moved pages.",
            &plain(self.longest_call_ns as f64 / 1e9),
        );
    }

    fn write_lost_samples(&self, text: &mut Text) {
        text.counter(
            "pages_given_up_total",
            "Pages that lost their counters to hotter ones.",
            self.given_up,
        );
        text.counter(
            "samples_dropped_total",
            "Samples that found no room.",
            self.dropped,
        );
        text.counter(
            "samples_without_node_total",
            "Samples whose page's node the kernel did not tell, or was not asked.",
            self.without_node,
        );
        text.counter(
            "samples_without_access_total",
            "Samples in which something was computed, in the kernel, or that cannot be decoded.",
            self.without_access,
        );
    }

    /// Writes the metrics of the latest interval.
    fn write_latest(&self, text: &mut Text) {
        text.metric(
            "hot_pages",
            "gauge",
            "Pages with counters.",
            &plain(self.hot_pages as f64),
        );
        let local: Vec<(String, f64)> = self
            .local_share
            .iter()
            .map(|share| (String::new(), *share))
            .collect();
        text.metric(
            "local_share",
            "gauge",
            "Local share of sampled accesses.",
            &local,
        );
        text.metric(
            "controller_imbalance",
            "gauge",
            "Standard deviation of the nodes' accesses over their mean.",
            &plain(self.imbalance),
        );
        let processes = |figure: fn(&ProcessMetrics) -> f64| -> Vec<(String, f64)> {
            let all = self.processes.iter();
            all.map(|process| (process.labels(), figure(process)))
                .collect()
        };
        text.metric(
            "process_lost_share",
            "gauge",
            "Share of the CPU time that was lost to memory.",
            &processes(|process| process.lost_share),
        );
        text.metric(
            "process_local_share",
            "gauge",
            "Local share of the process's sampled accesses.",
            &processes(|process| process.local_share),
        );
    }
}

/// A value without labels.
fn plain(value: f64) -> [(String, f64); 1] {
    [(String::new(), value)]
}

/// Text in Prometheus' format.
struct Text(String);

impl Text {
    /// Writes a metric, with a line for each of its labels.
    fn metric(&mut self, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
        let _ = writeln!(self.0, "# HELP nearpage_live_{name} {help}");
        let _ = writeln!(self.0, "# TYPE nearpage_live_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "nearpage_live_{name}{labels} {value}");
        }
    }

    fn counter(&mut self, name: &str, help: &str, total: u64) {
        self.metric(name, "counter", help, &plain(total as f64));
    }
}

/// Escapes a label's value, because a program's name may contain any character.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tests::report;

    #[test]
    fn a_scrape_gets_totals_and_harmless_labels() {
        let outcomes = Outcomes {
            moved: 7,
            busy: 2,
            ..Outcomes::default()
        };
        let mut report = report(vec![vec![3, 1], vec![0, 4]]);
        report.given_up = 3;
        report.without_node = 5;
        report.without_access = 6;
        report.outcomes = outcomes;
        report.moved_bytes = 7 * 4096;
        report.deciding_ns = 250_000;
        report.in_calls_ns = 1_500_000;
        report.longest_call_ns = 1_000_000;
        let proc_root = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc_root.path().join("9")).unwrap();
        std::fs::write(proc_root.path().join("9/cgroup"), "0::/slurm/job_4\n").unwrap();
        let mut metrics = Metrics::of_host("n1".to_owned());
        metrics.add(&report, proc_root.path());
        metrics.add(&report, proc_root.path());
        assert!(!metrics.text().contains("profile_messages"));
        metrics.set_profiles(4, 1);
        let text = metrics.text();
        for line in [
            "nearpage_live_intervals_total 2",
            "nearpage_live_pages_total{outcome=\"moved\"} 14",
            "nearpage_live_pages_total{outcome=\"busy\"} 4",
            "nearpage_live_moved_bytes_total 57344",
            "nearpage_live_decision_seconds_total 0.0005",
            "nearpage_live_move_seconds_total 0.003",
            "nearpage_live_pages_given_up_total 3",
            "nearpage_live_samples_without_node_total 5",
            "nearpage_live_samples_without_access_total 6",
            "nearpage_live_local_share 0.875",
            "nearpage_live_profile_messages_sent_total 4",
            "nearpage_live_profile_messages_lost_total 1",
            "nearpage_live_controller_imbalance 0.25",
            "nearpage_live_process_lost_share{pid=\"9\",name=\"a\\\"b\\\\c\\n\",cgroup=\"/slurm/job_4\",job_id=\"4\"} 0.25",
            concat!(
                "nearpage_live_info{host=\"n1\",version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
