//! `nearpage view`: recordings, plans and simulations in a browser.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;

use nearpage_plan::Plan;
use nearpage_view::{Listening, Session};

use crate::arguments::View;
use crate::progress::Progress;
use crate::terminal;
use crate::whole_file::WholeFile;

pub fn main(arguments: View) -> anyhow::Result<ExitCode> {
    // Before anything takes time: is the port free, is there a page?
    let listening = Listening::new(arguments.port)?;
    let paths: Vec<&Path> = arguments.paths.iter().map(AsRef::as_ref).collect();
    let mut session = {
        let _progress = Progress::new(format!("reading {}", paths[0].display()));
        Session::new(&paths)?
    };
    if let Some(file) = arguments.plan {
        session.plan = Some((file.clone(), Plan::read(&file)?));
    }
    session.parameters = arguments.deciding.parameters();
    session.threads = arguments.deciding.threads();
    if let Some(machine) = &arguments.machine {
        session.target = Some(crate::machine::read(machine)?);
    }
    let session = Arc::new(session);
    let address = listening.address();
    terminal::print(&format!("{address}\n"))?;
    if !arguments.no_open {
        open(&address);
    }
    let background = session.clone();
    thread::spawn(move || {
        let _progress = Progress::new("reading all accesses".to_owned());
        background.read_all();
    });
    listening.serve(session);
    Ok(ExitCode::SUCCESS)
}

/// `nearpage report DIR --html FILE`: the page in one file.
pub fn write(recording: &Path, file: &Path) -> anyhow::Result<ExitCode> {
    let html = {
        let _progress = Progress::new(format!("reading {}", recording.display()));
        let session = Session::new(&[recording])?;
        session.read_all();
        session.standalone()?
    };
    WholeFile::write(file, html.as_bytes())?;
    terminal::say(&format!("the page is in {}", file.display()));
    Ok(ExitCode::SUCCESS)
}

/// Opens a browser, or says that there is none.
fn open(address: &str) {
    let mut command = Command::new("xdg-open");
    command.arg(address).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if command.spawn().is_err() {
        terminal::say("no browser was opened (xdg-open is not installed): open the address above");
    }
}
