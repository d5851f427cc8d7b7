//! Migrates pages of a command or of running processes while they run: connects the sampler to the daemon, with log,
//! metrics and profiles.

mod collector;
mod profiles;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use nearpage_http::Endpoint;
use nearpage_live::{
    Claim, Daemon, Estimate, GuardThresholds, Head, Identity, Kernel, Limits, Linux, LivePolicy,
    Metrics, MetricsServer, RATE_MIN_HZ, Report, RespectedPolicies, Settings, append, balancing,
    watch,
};
use nearpage_machine::{CpuId, Machine};
use nearpage_recording::Source;
use nearpage_sampler::{Frequencies, Options, RequestedSource, Sampler, State, Target};

use crate::Reporter;
use crate::environment::Environment;
use crate::error::{Error, check_command};
use crate::launcher::own_host;
use crate::measured_costs;

use collector::{Collector, PostCounts};
use profiles::Profiles;

/// Sampling rate for policies that set no rate. It distinguishes pages within a few decisions.
const RATE_WANTED_HZ: f64 = 4000.0;
/// Assumed memory latency if the machine's latency is unknown.
const MEMORY_LATENCY_NS: f64 = 100.0;

/// Options of online migration.
#[derive(Clone, Debug)]
pub struct OnlineMigrationOptions {
    /// Processes whose pages are migrated.
    pub target: Target,
    /// Additional variables for a command.
    pub environment: Environment,
    /// The policy that decides, with its parameters.
    pub policy: LivePolicy,
    /// Memory policies whose pages stay in place.
    pub respected_policies: RespectedPolicies,
    /// Time between decisions.
    pub interval: Duration,
    /// Pin threads as the policy decides?
    pub moves_threads: bool,
    /// Decide, but move nothing?
    pub dry_run: bool,
    /// Limit of the share of the targets' CPU time that sampling takes.
    pub max_overhead: f64,
    /// Samples per second and CPU, instead of as many as `max_overhead` allows.
    pub rate_hz: Option<f64>,
    /// Minimum latency of sampled loads, if hardware measures latency; `None`: the policy's own minimum.
    pub min_latency_cycles: Option<u32>,
    /// Limits of the cost of moves.
    pub limits: Limits,
    /// Number of hot pages with counters, summed over processes.
    pub pages: usize,
    /// Seed of random numbers.
    pub seed: u64,
    /// File for the log of all decisions with their inputs.
    pub log: Option<PathBuf>,
    /// Address at which metrics are served, as `ADDRESS:PORT`.
    pub metrics_address: Option<String>,
    /// Collector for profiles, and the time between two posts.
    pub collector: Option<(Endpoint, Duration)>,
}

impl OnlineMigrationOptions {
    /// The defaults of `nearpage live`.
    pub fn new(target: Target, policy: LivePolicy) -> Self {
        Self {
            target,
            environment: Environment::new(),
            policy,
            respected_policies: RespectedPolicies::All,
            interval: Duration::from_secs(1),
            moves_threads: false,
            dry_run: false,
            max_overhead: 0.01,
            rate_hz: None,
            min_latency_cycles: None,
            limits: Limits {
                stall_ns: 20_000_000,
                bytes_per_second: 256 << 20,
            },
            pages: 30_000,
            seed: 0,
            log: None,
            metrics_address: None,
            collector: None,
        }
    }

    fn settings(&self, machine: &Machine) -> Settings {
        let has_one_node = machine.nodes_with_memory().len() < 2;
        Settings {
            policy: match has_one_node {
                true => LivePolicy::Watch,
                false => self.policy.clone(),
            },
            pages: self.pages,
            limits: self.limits,
            guard_thresholds: GuardThresholds::default(),
            dry_run: self.dry_run || has_one_node,
            moves_threads: self.moves_threads,
            seed: self.seed,
            page_bytes: machine.page_bytes,
            // The sampler determines the estimate later.
            estimate: Estimate::Weights,
            clock_mhz: clock_mhz(machine),
            source: String::new(),
        }
    }

    fn sampling(&self) -> Options {
        let mut sampling = Options::new(self.target.clone());
        sampling.environment = self.environment.clone();
        sampling.fault_period = 0;
        sampling.pmu.min_latency_cycles = self
            .min_latency_cycles
            .or_else(|| self.policy.min_latency_cycles());
        sampling.calibration = measured_costs::calibration(RequestedSource::Auto).ok();
        let cost_ns = || sampling.calibration?.sample_cost_ns;
        sampling.rate_hz = self
            .rate_hz
            .or_else(|| Some(affordable_rate_hz(self.max_overhead, cost_ns()?)));
        sampling.max_overhead = match self.rate_hz {
            Some(_) => None,
            None => Some(self.max_overhead),
        };
        sampling
    }
}

/// A target whose pages are being migrated.
pub struct OnlineMigration {
    interval: Duration,
    dry_run: bool,
    head: Head,
    sampler: Sampler,
    daemon: Daemon,
    kernel: Linux,
    log: Option<File>,
    server: Option<MetricsServer>,
    export: Option<Export>,
}

/// Profiles, and the collector that receives them.
struct Export {
    profiles: Profiles,
    collector: Collector,
}

/// Result of online migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlineMigrationResult {
    /// Exit status of the command; success for a target that ran already.
    pub status: ExitStatus,
    /// Pages that were moved.
    pub moved_pages: u64,
}

impl OnlineMigration {
    /// Starts the command, or attaches to the target.
    ///
    /// # Errors
    /// The policy cannot have the parameters on this machine. Another daemon has the target. The target cannot be
    /// sampled or run.
    pub fn start(options: &OnlineMigrationOptions, say: Reporter<'_>) -> Result<Self, Error> {
        if let Target::Command(command) = &options.target {
            check_command(command)?;
        }
        let machine = Machine::local(Path::new("/sys"))?;
        let mut log = options.log.as_deref().map(create_log).transpose()?;
        let address = options.metrics_address.as_deref();
        let server = address.map(MetricsServer::start).transpose()?;
        if let Some(server) = &server {
            say(&format!("metrics at http://{}/metrics", server.address()));
        }
        let mut settings = options.settings(&machine);
        // Without moves, messages about moves are useless.
        let is_to_move = options.policy != LivePolicy::Watch;
        if is_to_move && machine.nodes_with_memory().len() < 2 {
            say("this machine has one memory node: nothing to move, only to watch");
        }
        let is_command = matches!(options.target, Target::Command(_));
        if is_to_move && let Some(line) = kernel_balances(is_command && !settings.dry_run) {
            say(line);
        }
        // The check precedes all other work, so that a second daemon disturbs no program.
        refuse_taken(&options.target, settings.dry_run)?;
        let sampling = options.sampling();
        // Parameters are checked before a command starts.
        settings.check(&machine)?;
        let mut sampler = Sampler::start(&sampling)?;
        sampler.ask_rate(RATE_WANTED_HZ);
        sampler.notes().iter().for_each(|note| say(note));

        let source = sampler.choice().source;
        settings.estimate = estimate(source, &machine);
        settings.source = source.as_str().to_owned();
        let dry_run = settings.dry_run;
        let mut kernel = Linux::respecting(options.respected_policies);
        let daemon = Daemon::new(settings, &machine, kernel.now_ns())?;
        let head = daemon.head();
        if let Some(log) = &mut log {
            append(log, &head).map_err(nearpage_live::Error::WriteLog)?;
        }
        let export = options.collector.as_ref().map(|(endpoint, every)| Export {
            profiles: Profiles::new(&head, source.measures_latency(), *every),
            collector: Collector::start(endpoint.clone()),
        });
        Ok(Self {
            interval: options.interval,
            dry_run,
            export,
            head,
            sampler,
            daemon,
            kernel,
            log,
            server,
        })
    }

    /// Is nothing moved, because of an option or a single memory node?
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Head of the log: policy and nodes.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Migrates pages until the target ends. `each` is called with the report of every interval, `say` with messages
    /// about profiles.
    ///
    /// # Errors
    /// Errors of the sampler, and a log that cannot be written. The targets continue in any case.
    pub fn finish(
        mut self,
        each: &mut dyn FnMut(&Report),
        say: Reporter<'_>,
    ) -> Result<OnlineMigrationResult, Error> {
        let log = self.log.as_mut().map(|log| log as &mut dyn Write);
        let mut metrics = Metrics::of_host(own_host());
        let mut moved_pages = 0;
        let mut export = self.export;
        let watched = watch(
            self.sampler,
            &mut self.daemon,
            &mut self.kernel,
            self.interval,
            log,
            |report| {
                moved_pages += report.outcomes.moved;
                if let Some(export) = &mut export {
                    export.take(report, say);
                    let PostCounts { sent, lost } = export.collector.counts();
                    metrics.set_profiles(sent, lost);
                }
                if let Some(server) = &self.server {
                    metrics.add(report, Path::new("/proc"));
                    server.show(&metrics);
                }
                each(report);
            },
        );
        if let Some(line) = export.and_then(Export::finish) {
            say(&line);
        }
        let summary = watched?;
        Ok(OnlineMigrationResult {
            status: status(summary.state),
            moved_pages,
        })
    }
}

impl Export {
    fn take(&mut self, report: &Report, say: Reporter<'_>) {
        if let Some(message) = self.profiles.take(report) {
            self.collector.post(message);
        }
        if let Some(line) = self.collector.trouble() {
            say(&line);
        }
    }

    /// A message about profiles that the collector did not take, if there are any.
    fn finish(mut self) -> Option<String> {
        if let Some(message) = self.profiles.message() {
            self.collector.post(message);
        }
        self.collector.finish()
    }
}

/// Exit status of a command; success if the target continues or ran already.
fn status(state: State) -> ExitStatus {
    match state {
        State::Ended(status) => status,
        State::Running | State::Detached | State::TargetEnded => ExitStatus::default(),
    }
}

fn create_log(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(|source| Error::MigrationLog {
        path: path.to_owned(),
        source,
    })
}

/// Sampling rate that the bound on overhead allows, by the present cost of a sample. The governor corrects the rate
/// later.
fn affordable_rate_hz(max_overhead: f64, cost_ns: f64) -> f64 {
    (max_overhead * 1e9 / cost_ns).clamp(RATE_MIN_HZ, RATE_WANTED_HZ)
}

/// Method for estimating memory accesses from samples.
fn estimate(source: Source, machine: &Machine) -> Estimate {
    match source {
        Source::Clock | Source::Signal => Estimate::TimeLost {
            latency_ns: memory_latency_ns(machine),
        },
        _ => Estimate::Weights,
    }
}

/// Frequency of the first CPU, in MHz.
fn clock_mhz(machine: &Machine) -> u32 {
    let first = machine.cpus().as_slice().first().copied();
    let cpu = first.unwrap_or(CpuId(0));
    let frequencies = Frequencies::read(Path::new("/sys"), Path::new("/proc"), &[cpu]);
    (frequencies.ghz(cpu) * 1000.0) as u32
}

/// Mean memory latency over all pairs of nodes.
fn memory_latency_ns(machine: &Machine) -> f64 {
    let known: Vec<f64> = machine
        .latency_ns
        .iter()
        .flat_map(|matrix| matrix.iter().flatten())
        .flatten()
        .copied()
        .collect();
    match known.len() {
        0 => MEMORY_LATENCY_NS,
        count => known.iter().sum::<f64>() / count as f64,
    }
}

/// Fails if another daemon has one of the named processes. Unnamed processes of another daemon are left out later.
fn refuse_taken(target: &Target, dry_run: bool) -> Result<(), Error> {
    let Target::Processes(pids) = target else {
        return Ok(());
    };
    for &pid in pids {
        let Some(started) = Linux::default().started(pid) else {
            continue; // The sampler reports the missing process.
        };
        if !dry_run && Claim::on(Identity { pid, started }).is_none() {
            return Err(nearpage_live::Error::Taken { pid }.into());
        }
    }
    Ok(())
}

/// A message if the kernel's automatic balancing is on. `command`: a command starts here, and balancing is kept off it.
fn kernel_balances(command: bool) -> Option<&'static str> {
    if !balancing::is_on(Path::new("/proc")) {
        return None;
    }
    Some(match command && balancing::hold_off() {
        true => {
            "automatic NUMA balancing is on; it is kept off the command, by the memory policy `local`"
        }
        false => {
            "automatic NUMA balancing is on and moves the same pages by its own rules; `sysctl \
             kernel.numa_balancing=0` turns it off, for the whole machine: there is no switch for a process that runs"
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use nearpage_machine::preset;

    use super::*;

    fn options() -> OnlineMigrationOptions {
        let policy = LivePolicy::from_name("auto").unwrap();
        OnlineMigrationOptions::new(Target::All, policy)
    }

    #[test]
    fn on_one_node_there_is_only_watching() {
        let four_nodes = preset("opteron-4").unwrap();
        let settings = options().settings(&four_nodes);
        assert_eq!(settings.policy, options().policy);
        assert!(!settings.dry_run);
        settings.check(&four_nodes).unwrap();

        let mut one_node = preset("opteron-4").unwrap();
        one_node.nodes.truncate(1);
        let settings = options().settings(&one_node);
        assert_eq!(settings.policy, LivePolicy::Watch);
        assert!(settings.dry_run);
    }

    #[test]
    fn the_rate_is_what_the_overhead_affords_within_limits() {
        // 1 % of a second, at 10 µs a sample.
        assert_eq!(affordable_rate_hz(0.01, 10_000.0), 1000.0);
        assert_eq!(affordable_rate_hz(0.01, 1.0), RATE_WANTED_HZ);
        assert_eq!(affordable_rate_hz(0.01, 1e9), RATE_MIN_HZ);
    }

    #[test]
    fn a_clock_sample_stands_for_the_accesses_that_its_period_waits_for() {
        let mut machine = preset("opteron-4").unwrap();
        machine.latency_ns = None;
        let lost = |latency_ns| Estimate::TimeLost { latency_ns };
        assert_eq!(estimate(Source::Clock, &machine), lost(100.0));
        assert_eq!(estimate(Source::Pmu, &machine), Estimate::Weights);
        machine.latency_ns = Some(vec![vec![Some(100.0), Some(300.0)], vec![None, None]]);
        assert_eq!(estimate(Source::Signal, &machine), lost(200.0));
    }

    #[test]
    fn only_a_command_that_ended_has_a_status() {
        let killed = ExitStatus::from_raw(libc::SIGKILL);
        assert_eq!(status(State::Ended(killed)), killed);
        for state in [State::Running, State::Detached, State::TargetEnded] {
            assert!(status(state).success());
        }
    }

    #[test]
    fn a_process_is_one_daemons_alone() {
        let pid = std::process::id();
        let started = Linux::default().started(pid).unwrap();
        let target = Target::Processes(vec![pid]);
        refuse_taken(&target, false).unwrap();
        let claim = Claim::on(Identity { pid, started }).unwrap();
        let error = refuse_taken(&target, false).unwrap_err();
        assert!(
            error.to_string().contains("another nearpage live"),
            "{error}"
        );
        // A dry run disturbs no process.
        refuse_taken(&target, true).unwrap();
        drop(claim);
        refuse_taken(&target, false).unwrap();
    }

    #[test]
    fn a_log_that_cannot_be_made_is_named() {
        let error = create_log(Path::new("/no/such/folder/log")).unwrap_err();
        assert_eq!(error.to_string(), "/no/such/folder/log");
        assert!(std::error::Error::source(&error).is_some());
    }
}
