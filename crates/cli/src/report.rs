//! `nearpage report`: prints the analysis of a recording.

use std::process::ExitCode;

use nearpage_attribution::{ObjectGroup, Operations};
use nearpage_recording::trace::TraceStatistics;
use nearpage_recording::{Error, Job, Recording};
use nearpage_report::{Content, Count, TextOptions, heatmap, json, text};

use crate::arguments::{GroupBy, Report, Sort};
use crate::progress::Progress;
use crate::{Usage, analysis, terminal};

/// Default of --top.
pub const ROWS: usize = 20;

pub fn main(arguments: Report) -> anyhow::Result<ExitCode> {
    if let Some(job) = Job::open(&arguments.recording)? {
        return crate::job::report(&arguments, &job);
    }
    if let Some(file) = &arguments.html {
        return crate::view::write(&arguments.recording, file);
    }
    let by = match arguments.by.unwrap_or(GroupBy::Object) {
        GroupBy::Object => nearpage_report::GroupBy::Object,
        GroupBy::Thread => nearpage_report::GroupBy::Thread,
        GroupBy::Page => nearpage_report::GroupBy::Page,
        GroupBy::Matrix => nearpage_report::GroupBy::Matrix,
        GroupBy::CallSite => nearpage_report::GroupBy::CallSite,
        GroupBy::Rank | GroupBy::Host | GroupBy::Node | GroupBy::Group => {
            let wording = format!(
                "--by rank, host, node and group are for the folder of a job, and {} is a recording",
                arguments.recording.display()
            );
            return Err(Usage(wording).into());
        }
    };
    let operations = arguments.operations();
    let count = match operations {
        Operations::Loads => Count::Loads,
        Operations::Stores => Count::Stores,
        Operations::Both => Count::Both,
    };
    let (top, share_min) = rows(&arguments);
    let mut analysis = analysis::read(&arguments.recording, operations)?;
    let statistics = statistics(&arguments, &analysis.recording)?;
    let mut symbols = analysis.recording.symbols();
    let printed = if arguments.json {
        let remote = |group: &ObjectGroup| group.loads.remote + group.stores.remote;
        let objects = &mut analysis.attribution.objects;
        match arguments.sort {
            Sort::Cost => {}
            Sort::Accesses => objects.sort_by(|a, b| b.accesses().total_cmp(&a.accesses())),
            Sort::Remote => objects.sort_by(|a, b| remote(b).total_cmp(&remote(a))),
        }
        let rows = arguments.top.unwrap_or(usize::MAX);
        let content = Content {
            trace: statistics.as_ref(),
            ..Content::new(&analysis.attribution, &analysis.recording)
        };
        json(&content, rows, by, &mut symbols)
    } else {
        let options = TextOptions {
            width: terminal::width(),
            by,
            count,
            sort: match arguments.sort {
                Sort::Cost => nearpage_report::Sort::Cost,
                Sort::Accesses => nearpage_report::Sort::Accesses,
                Sort::Remote => nearpage_report::Sort::Remote,
            },
            top,
            share_min,
            colour: terminal::colour(),
        };
        let content = Content {
            trace: statistics.as_ref(),
            ..Content::new(&analysis.attribution, &analysis.recording)
        };
        match &arguments.heatmap {
            Some(object) => heatmap(&content, &options, object).map_err(Usage)?,
            None => text(&content, &options, &mut symbols),
        }
    };
    terminal::print(&printed)?;
    if !printed.ends_with('\n') {
        terminal::print("\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Maximum number of rows, and minimum share of a row.
fn rows(arguments: &Report) -> (usize, f64) {
    match (arguments.all, arguments.top) {
        (true, _) => (usize::MAX, 0.0),
        (false, Some(top)) => (top, 0.0),
        (false, None) => (ROWS, TextOptions::default().share_min),
    }
}

/// Statistics of all misses of a trace; `None` for samples, or if the options select loads or stores alone.
fn statistics(
    arguments: &Report,
    recording: &Recording,
) -> anyhow::Result<Option<TraceStatistics>> {
    if arguments.loads || arguments.stores {
        return Ok(None);
    }
    let _progress = Progress::new(format!("reading {}", arguments.recording.display()));
    match recording.trace_statistics() {
        Ok(statistics) => Ok(Some(statistics)),
        Err(Error::SamplesOnly(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
