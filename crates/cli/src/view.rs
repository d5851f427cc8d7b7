//! `nearpage view`: shows recordings, plans, simulations and runs of the lab in a browser.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;

use nearpage_files::TemporaryFolder;
use nearpage_plan::Plan;
use nearpage_recording::Job;
use nearpage_view::{Listening, Session};

use crate::arguments::View;
use crate::job;
use crate::lab;
use crate::progress::Progress;
use crate::terminal;
use crate::whole_file::WholeFile;

pub fn main(arguments: View) -> anyhow::Result<ExitCode> {
    // Fails before slow work if the port is taken or the page is missing.
    let job = match arguments.paths.as_slice() {
        [folder] => Job::open(folder)?,
        _ => None,
    };
    let paths: Vec<&Path> = arguments.paths.iter().map(AsRef::as_ref).collect();
    let listening = Listening::new(arguments.port, &paths)?;
    let mut session = match &job {
        Some(job) => of_job(job)?,
        None => {
            let _progress = Progress::new(format!("reading {}", paths[0].display()));
            let shown = lab::shown(&arguments.paths)?;
            let mut session = Session::new(&shown.others)?;
            session.simulations.extend(shown.runs);
            session
        }
    };
    if let Some(file) = arguments.plan {
        session.plan = Some((file.clone(), Plan::read(&file)?));
    }
    session.source_folders = arguments.source_folders;
    session.parameters = arguments.deciding.parameters();
    session.threads = arguments.deciding.threads();
    if let Some(machine) = &arguments.machine {
        session.target = Some(crate::machine::read(machine)?);
    }
    if let Some(why) = listening.not_kept() {
        terminal::say(why);
    }
    let session = Arc::new(session);
    let address = listening.address();
    terminal::print(&format!("{address}\n"))?;
    let opener = (!arguments.no_open).then(|| open(&address)).flatten();
    let background = session.clone();
    thread::spawn(move || {
        read_all(&background, "reading all accesses".to_owned());
    });
    match listening.serve(session, move || drop(opener))? {}
}

/// A session for a job, with the recordings that are shown first.
fn of_job(job: &Job) -> anyhow::Result<Session> {
    let page = job::page(job)?;
    let _progress = Progress::new(format!("reading {}", page.recordings[0].display()));
    let paths: Vec<&Path> = page.recordings.iter().map(AsRef::as_ref).collect();
    let mut session = Session::new(&paths)?;
    session.job = Some(page.ranks);
    Ok(session)
}

/// `nearpage report DIR --html FILE`: writes the page of a recording to one file.
pub fn write(recording: &Path, file: &Path) -> anyhow::Result<ExitCode> {
    let session = {
        let _progress = Progress::new(format!("reading {}", recording.display()));
        Session::new(&[recording])?
    };
    write_session(session, recording, file)
}

/// Writes the page of a job to one file, with the recordings that the page shows first.
pub fn write_job(job: &Job, file: &Path) -> anyhow::Result<ExitCode> {
    write_session(of_job(job)?, &job.folder, file)
}

fn write_session(session: Session, shown: &Path, file: &Path) -> anyhow::Result<ExitCode> {
    let session = Arc::new(session);
    read_all(&session, format!("reading {}", shown.display()));
    let html = session.standalone()?;
    WholeFile::write(file, html.as_bytes())?;
    terminal::next_page(file);
    Ok(ExitCode::SUCCESS)
}

/// Reads the accesses that the first, quick reading of the recordings skipped.
fn read_all(session: &Arc<Session>, doing: String) {
    let watched = session.clone();
    let _progress = Progress::following(doing, move || watched.chunks_read());
    session.read_all();
}

/// A local page that redirects to the server's page. The address is a secret, and every local user can read the
/// arguments of a browser's process. So the browser gets the path of this page, which only the user can read.
struct Opener(TemporaryFolder);

impl Opener {
    fn new(address: &str) -> io::Result<Self> {
        let session = env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute());
        let made = session.map(|folder| TemporaryFolder::below(&folder, "page"));
        let opener = Self(match made {
            Some(Ok(folder)) => folder,
            _ => TemporaryFolder::new("page")?,
        });
        let text = format!(
            "<!doctype html><meta charset=utf-8><title>nearpage</title>\
             <meta http-equiv=refresh content=\"0;url={address}\"><a href=\"{address}\">nearpage</a>\n"
        );
        nearpage_files::create(&opener.file())?.write_all(text.as_bytes())?;
        Ok(opener)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("nearpage.html")
    }
}

/// Opens a browser, or says why none was opened. The returned file must exist until the browser has asked for the page.
fn open(address: &str) -> Option<Opener> {
    let not_opened = |why: String| {
        terminal::say(&format!(
            "no browser was opened ({why}): open the address above"
        ));
        None
    };
    let opener = match Opener::new(address) {
        Ok(opener) => opener,
        Err(error) => return not_opened(error.to_string()),
    };
    let mut command = Command::new("xdg-open");
    command.arg(opener.file()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(_) => Some(opener),
        Err(_) => not_opened("xdg-open is not installed".to_owned()),
    }
}
