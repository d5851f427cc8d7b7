//! `nearpage run`: run a command with its pages placed.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, bail};
use nearpage_machine::{NodeId, several};
use nearpage_plan::{Live, PlaceRule, Plan, ProgramImage, SearchPaths, Store};

use crate::Usage;
use crate::arguments::{Mechanism, Run};
use crate::launch::PreloadLibrary;
use crate::live::Watch;
use crate::placing::{Placing, Wish};
use crate::replicas::{self, Replicas};
use crate::{signals, terminal};

pub fn main(arguments: Run) -> anyhow::Result<ExitCode> {
    let machine = crate::machine::read(&arguments.machine)?;
    let known = machine.node_ids();
    let rules = arguments
        .place
        .iter()
        .map(|rule| parse(rule, &known))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let programs =
        ProgramImage::load_command(&arguments.command, &SearchPaths::from_environment())?;
    let nothing_to_place =
        arguments.plan.is_empty() && rules.is_empty() && arguments.threads.is_none();
    let what = replicas::What::parse(&arguments.replicate)?;
    let plans = if nothing_to_place && what.is_empty() {
        kept(&programs, &arguments.command, arguments.quiet)?
    } else {
        arguments
            .plan
            .iter()
            .map(|path| Plan::read(path))
            .collect::<Result<Vec<_>, _>>()?
    };
    let wish = Wish {
        machine: &machine,
        plans: &plans,
        rules: &rules,
        threads: arguments.threads,
        mechanism: mechanism(arguments.mechanism),
        touch_group: arguments.touch_group,
    };
    // What is only to be replicated has no need of a plan.
    let placing = match nothing_to_place && !what.is_empty() {
        true => None,
        false => Some(Placing::new(&wish, &programs).map_err(as_usage)?),
    };
    let library = PreloadLibrary::find()?;
    let say = |line: &str| {
        if !arguments.quiet {
            terminal::say(line);
        }
    };
    if let Some(placing) = &placing {
        placing.warnings.iter().for_each(|warning| say(warning));
    }
    if let Some(image) = programs.first().filter(|image| image.program.is_static) {
        bail!(
            "{}: statically linked, so nothing can be placed in it; link it dynamically, or use numactl",
            image.program.path.display()
        );
    }
    if machine.nodes_with_memory().len() < 2 {
        say("this machine has one memory node: pages have nowhere else to go");
    }
    let replicas = Replicas::make(
        &what,
        &programs,
        &machine.nodes_with_memory(),
        arguments.replicate_max << 20,
    )?;
    replicas.notes().iter().for_each(|line| say(line));
    let mut environment = placing.as_ref().map_or_else(Vec::new, Placing::environment);
    environment.extend(replicas.environment());
    environment.push(("LD_PRELOAD".into(), library.ld_preload()));
    let live = plans.iter().find_map(|plan| plan.live.as_ref());
    let live = live.filter(|_| machine.nodes_with_memory().len() > 1);
    live.map(nearpage_planner::replay::homes::auto_parameters)
        .transpose()?;
    let status = match live {
        None => wait_for(&arguments.command, environment)?,
        Some(live) => looked_after(live, &arguments.command, environment, &say)?,
    };
    let placed = placing.map_or_else(Vec::new, |placing| placing.outcome());
    placed
        .iter()
        .chain(&replicas.outcome())
        .for_each(|line| say(line));
    Ok(ExitCode::from(status))
}

/// Runs a command, and looks after it where that is possible; its status as a shell shows it.
fn looked_after(
    live: &Live,
    command: &[OsString],
    environment: Vec<(OsString, OsString)>,
    say: &dyn Fn(&str),
) -> anyhow::Result<u8> {
    match Watch::command(&live.parameters, command, environment.clone()) {
        Ok(watch) => {
            let watched = watch.finish()?;
            let moved = several(watched.moved, "page");
            say(&format!(
                "looked after by auto, as the plan says: {moved} moved"
            ));
            Ok(watched.status)
        }
        // It has not run. Where the command itself is at fault, this says so.
        Err(error) => {
            say(&format!(
                "not looked after, though the plan says so: {error:#}"
            ));
            wait_for(command, environment)
        }
    }
}

/// A rule; one that is wrong on any machine is wrong usage.
fn parse(rule: &str, known: &[NodeId]) -> anyhow::Result<PlaceRule> {
    PlaceRule::parse(rule, known).map_err(|error| match PlaceRule::parse(rule, &[]) {
        Err(wording) if wording.is_usage() => Usage(error.to_string()).into(),
        _ => error.into(),
    })
}

/// Rules that are wrong together, on any machine, are wrong usage too.
fn as_usage(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<nearpage_plan::Error>() {
        Some(wording) if wording.is_usage() => Usage(wording.to_string()).into(),
        _ => error,
    }
}

/// As the plan crate calls it.
pub fn mechanism(mechanism: Mechanism) -> nearpage_plan::Mechanism {
    match mechanism {
        Mechanism::Bind => nearpage_plan::Mechanism::Bind,
        Mechanism::Touch => nearpage_plan::Mechanism::Touch,
    }
}

/// The newest kept plans that fit the command.
fn kept(programs: &[ProgramImage], command: &[OsString], quiet: bool) -> anyhow::Result<Vec<Plan>> {
    let store =
        Store::of_user().context("no --plan given, and no home folder to look for a kept one")?;
    let program = programs[0].identity(&command[1..]);
    let (kept, warnings) = store.newest_fitting(&program);
    if !quiet {
        warnings.iter().for_each(|warning| terminal::say(warning));
    }
    let Some(kept) = kept else {
        bail!(
            "no plan is kept for {}; make one with `nearpage optimize -- COMMAND`, name one with --plan, or place by \
             hand with --place",
            program.executable
        );
    };
    if !quiet {
        let arguments = if kept.same_arguments {
            ""
        } else {
            ", made with other arguments"
        };
        terminal::say(&format!(
            "using the kept plan {}{arguments}",
            kept.path.display()
        ));
    }
    Ok(kept.plans)
}

static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: kill is async-signal-safe; the child is not waited for while this is installed.
        unsafe { libc::kill(child, signal) };
    }
}

/// Runs a command to its end; its status as a shell shows it. Signals from the terminal reach the
/// command by themselves; SIGTERM and SIGHUP are passed on.
pub fn wait_for(
    command: &[OsString],
    environment: Vec<(OsString, OsString)>,
) -> anyhow::Result<u8> {
    let name = command.first().context("no command given")?;
    let mut starting = Command::new(name);
    starting.args(&command[1..]).envs(environment);
    if signals::ignores_sigpipe() {
        // The standard library resets it.
        // SAFETY: between fork and exec a disposition is set, which neither allocates nor locks.
        unsafe {
            starting.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                Ok(())
            });
        }
    }
    let mut child = starting
        .spawn()
        .with_context(|| format!("{}: can't be run", name.to_string_lossy()))?;
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    let set = |signal, action: libc::sighandler_t| {
        // SAFETY: the handler only reads an atomic and calls kill.
        unsafe { libc::signal(signal, action) }
    };
    let previous = [libc::SIGINT, libc::SIGQUIT].map(|signal| (signal, set(signal, libc::SIG_IGN)));
    let handler = pass_on as extern "C" fn(libc::c_int) as libc::sighandler_t;
    let passed = [libc::SIGTERM, libc::SIGHUP].map(|signal| (signal, set(signal, handler)));
    let status = child.wait();
    CHILD.store(0, Ordering::Relaxed);
    for (signal, action) in previous.into_iter().chain(passed) {
        set(signal, action);
    }
    let status = status.context("can't wait for the command")?;
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    Ok(code.clamp(0, 255) as u8)
}
