//! `nearpage simulate --sweep` and `nearpage sweep`: traces × machines × policies × parameters. Each result is a file,
//! so that an interrupted sweep can continue, and processes on many hosts can share a sweep.

mod caliper;
mod columns;
mod file;
mod result;
mod slurm;
mod table;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use nearpage_machine::Machine;
use nearpage_planner::replay::trace::Replayed;
use nearpage_recording::Recording;
use nearpage_simulator::{Job, SimulatedPolicy, Trace, simulate};

use crate::arguments::{Deciding, Engine, Shard, Sweep, SweepCommand, SweepReport};
use crate::cells::{self, Attempt};
use crate::progress::Progress;
use crate::simulate::{Plans, serves};
use crate::whole_file::WholeFile;
use crate::{Usage, json, shell, terminal};

use file::{Cell, SweepFile};
use result::{CellResult, Inputs, StoredCell, trace_identity};
use table::Table;

pub use table::{SweepOutput, SweepStatusOutput};

/// Size limit of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub fn main(arguments: &Sweep) -> anyhow::Result<ExitCode> {
    match &arguments.what {
        SweepCommand::Run(run) if run.engine == Engine::Local => {
            if !run.options.is_empty() {
                let wording = "options after -- are for sbatch, with --engine slurm";
                return Err(Usage(wording.to_owned()).into());
            }
            compute(&run.file, Shard::WHOLE, run.jobs)
        }
        SweepCommand::Run(run) => {
            // Mistakes in the file show before the job waits in a queue.
            let work = SweepWork::read(&run.file)?;
            slurm::run(run, &work)?;
            finished(&Table::of(&work)?, &work)
        }
        SweepCommand::Status(status) => {
            let table = Table::of(&SweepWork::read(&status.file)?)?;
            match status.json {
                true => json::print(&table.status())?,
                false => terminal::print(&table.status().to_text())?,
            }
            Ok(ExitCode::SUCCESS)
        }
        SweepCommand::Report(report) => {
            write_report(report)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the results, or writes them as the options say.
fn write_report(report: &SweepReport) -> anyhow::Result<()> {
    // Options name files relative to the current folder. Reading the sweep changes to the sweep's folder.
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(std::path::absolute).transpose();
    let not_found = "the current folder can't be found";
    let html = absolute(&report.html).context(not_found)?;
    let parquet = absolute(&report.parquet).context(not_found)?;
    let caliper = absolute(&report.caliper).context(not_found)?;
    let table = Table::of(&SweepWork::read(&report.file)?)?;
    let output = table.output();
    if let Some(path) = &parquet {
        columns::write_parquet(&output, path)?;
    }
    if let Some(folder) = &caliper {
        caliper::write_caliper(&output, folder)?;
    }
    if let Some(path) = &html {
        let name = report.file.display().to_string();
        let page = nearpage_view::sweep_page(&name, serde_json::to_value(&output)?)?;
        WholeFile::write(path, page.as_bytes())?;
    }
    if report.json {
        return json::print(&output);
    }
    if report.csv {
        return Ok(terminal::print(&columns::csv(&output))?);
    }
    match (&report.html, &report.caliper) {
        (Some(path), _) => {
            terminal::next_page(path);
        }
        (None, Some(folder)) => terminal::say(&format!(
            "next: thicket.Thicket.from_caliper({:?}) in Python",
            folder.display().to_string()
        )),
        (None, None) if parquet.is_some() => {}
        (None, None) => terminal::print(&output.to_text(terminal::width()))?,
    }
    Ok(())
}

/// Cells of a sweep, and the folder of their results.
struct SweepWork {
    /// Path of the file as the user typed it.
    name: String,
    /// Absolute path of the file.
    path: PathBuf,
    folder: PathBuf,
    cells: Vec<Cell>,
}

impl SweepWork {
    /// Reads a sweep's file, and changes to its folder: names of traces, machines and plans are relative to it.
    fn read(file: &Path) -> anyhow::Result<Self> {
        let name = file.display().to_string();
        let text = nearpage_files::read_text(file, FILE_BYTES_MAX)
            .with_context(|| format!("{name}: can't be read"))?;
        let path = file.canonicalize();
        let path = path.with_context(|| format!("{name}: can't be found"))?;
        if let Some(parent) = path.parent() {
            std::env::set_current_dir(parent)
                .with_context(|| format!("{name}: its folder can't be entered"))?;
        }
        let cells = SweepFile::parse(&text).and_then(|file| file.cells());
        Ok(Self {
            cells: cells.map_err(|error| Usage(format!("{name}: {error}")))?,
            folder: path.with_extension("cells"),
            path,
            name,
        })
    }

    /// Calls `each` in order with groups of cells that have a trace and a machine in common, and the position of the
    /// first cell. A trace is opened once for all its groups.
    fn for_each_group(
        &self,
        mut each: impl FnMut(&Opened, usize, &[Cell]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut opened: Option<Opened> = None;
        let mut first = 0;
        let together =
            |a: &Cell, b: &Cell| (&a.recording, &a.machine) == (&b.recording, &b.machine);
        for cells in self.cells.chunk_by(together) {
            let is_open = opened
                .as_ref()
                .is_some_and(|open| open.name == cells[0].recording);
            if !is_open {
                opened = Some(Opened::open(&cells[0].recording)?);
            }
            if let Some(opened) = &opened {
                each(opened, first, cells)?;
            }
            first += cells.len();
        }
        Ok(())
    }
}

/// An opened trace, whose cells are processed.
struct Opened {
    name: String,
    recording: Recording,
    identity: String,
}

impl Opened {
    fn open(name: &str) -> anyhow::Result<Self> {
        let recording = Recording::open(Path::new(name))?;
        if recording.metadata.tracing.is_none() {
            return Err(nearpage_recording::Error::SamplesOnly(recording.folder).into());
        }
        Ok(Self {
            name: name.to_owned(),
            identity: trace_identity(&recording)?,
            recording,
        })
    }

    fn machine(&self, cell: &Cell) -> anyhow::Result<Machine> {
        match &cell.machine {
            Some(name) => crate::machine::read(name),
            None => Ok(self.recording.machine.clone()),
        }
    }

    fn inputs(&self, cells: &[Cell], machine: &Machine) -> anyhow::Result<Vec<Inputs>> {
        let inputs = cells
            .iter()
            .map(|cell| Inputs::of(cell, &self.identity, machine));
        inputs.collect()
    }
}

/// Computes the missing results of a shard.
pub fn compute(file: &Path, shard: Shard, jobs: Option<u16>) -> anyhow::Result<ExitCode> {
    let work = SweepWork::read(file)?;
    std::fs::create_dir_all(&work.folder)
        .with_context(|| format!("{}: can't be made", work.folder.display()))?;
    let workers = jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    work.for_each_group(|opened, first, cells| {
        let machine = opened.machine(&cells[0])?;
        let inputs = opened.inputs(cells, &machine)?;
        let mut missing = Vec::new();
        for (at, (cell, inputs)) in cells.iter().zip(inputs).enumerate() {
            let is_done = |kept: StoredCell| kept.failed.is_none();
            if shard.has(first + at) && !inputs.kept(&work.folder)?.is_some_and(is_done) {
                missing.push(Missing {
                    title: format!(
                        "{} of {}: {}",
                        first + at + 1,
                        work.cells.len(),
                        cell.title()
                    ),
                    cell,
                    inputs,
                });
            }
        }
        compute_group(opened, &machine, &missing, &work.folder, workers)
    })?;
    match shard {
        Shard::WHOLE => finished(&Table::of(&work)?, &work),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Says how a sweep ended. The exit status is a failure if a cell has no result.
fn finished(table: &Table, work: &SweepWork) -> anyhow::Result<ExitCode> {
    let status = table.status();
    status.to_text().lines().for_each(terminal::say);
    terminal::next(&format!(
        "nearpage sweep report {}",
        shell::path(Path::new(&work.name))
    ));
    Ok(match status.is_complete() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A cell without a result.
struct Missing<'a> {
    title: String,
    cell: &'a Cell,
    inputs: Inputs,
}

/// Computes cells of one trace on one machine, several at once.
fn compute_group(
    opened: &Opened,
    machine: &Machine,
    missing: &[Missing<'_>],
    folder: &Path,
    workers: usize,
) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let progress = Progress::new(format!("reading {}", opened.name));
    let recording = &opened.recording;
    let named = missing[0].cell.machine.as_deref().unwrap_or("local");
    serves(recording, machine, named)?;
    let mut trace = Replayed::new(recording, recording.trace()?);
    if missing.len() > 1 {
        trace.keep_steps()?;
    }
    let jobs = jobs(recording, &trace, machine, missing)?;
    let trace: &dyn Trace = &trace;
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        while let Some((one, job)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            missing.get(at).zip(jobs.get(at))
        } {
            progress.say(one.title.clone());
            if let Err(error) = one.compute(job, trace, machine, folder) {
                // After a failure, no worker begins a further cell.
                next.store(missing.len(), Ordering::Relaxed);
                failure
                    .lock()
                    .expect("no worker panics")
                    .get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers.clamp(1, missing.len()) {
            scope.spawn(work);
        }
        work();
    });
    failure
        .into_inner()
        .expect("no worker panics")
        .map_or(Ok(()), Err)
}

/// The job of each cell, or the reason why a cell has none.
fn jobs(
    recording: &Recording,
    trace: &Replayed,
    machine: &Machine,
    missing: &[Missing<'_>],
) -> anyhow::Result<Vec<Result<Job, String>>> {
    let deciding = Deciding::default();
    let mut plans = Plans {
        deciding: &deciding,
        recordings: std::slice::from_ref(recording),
        traces: std::slice::from_ref(trace),
        processes: vec![OnceCell::new()],
        machine,
        notes: Vec::new(),
        elsewhere: Vec::new(),
    };
    let mut jobs = Vec::new();
    for one in missing {
        let mut job = one.cell.job()?;
        let found = match &mut job.policy {
            SimulatedPolicy::Homes { name, plan } => {
                plans.find(name).map(|mut found| *plan = found.remove(0))
            }
            _ => Ok(()),
        };
        jobs.push(found.map(|()| job).map_err(|error| error.to_string()));
    }
    Ok(jobs)
}

impl Missing<'_> {
    fn compute(
        &self,
        job: &Result<Job, String>,
        trace: &dyn Trace,
        machine: &Machine,
        folder: &Path,
    ) -> anyhow::Result<()> {
        let simulated = || {
            let job = job.as_ref().map_err(Clone::clone)?;
            let outcomes = simulate(trace, machine, std::slice::from_ref(job), 1);
            let outcomes = outcomes.map_err(|error| error.to_string())?;
            Ok(CellResult::from(&outcomes[0]))
        };
        let finished = || {
            Ok(self
                .inputs
                .kept(folder)?
                .filter(|kept| kept.failed.is_none()))
        };
        let path = self.inputs.path(folder)?;
        let attempt = cells::compute(&path, finished, || {
            Ok(self.inputs.keep(self.cell, simulated()))
        })?;
        if let Attempt::Done(kept) = attempt {
            let words = match (&kept.failed, kept.result) {
                (Some(cause), _) => format!("failed: {cause}"),
                (None, Some(result)) => nearpage_amount::time(result.time_ns),
                (None, None) => "no result".to_owned(),
            };
            terminal::say(&format!("{}: {words}", self.title));
        }
        Ok(())
    }
}
