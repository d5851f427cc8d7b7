//! Requests of the page, and their answers: JSON, or for pictures a line of JSON followed by bytes.

use std::collections::BTreeMap;
use std::io;

use nearpage_http::Answer;
use nearpage_recording::ModuleId;
use nearpage_report::{Content, json};
use serde::Serialize;
use serde_json::{Value, json};

use crate::code;
use crate::flame::flame;
use crate::objects::{OBJECTS_WHOLE, brief, matrix, object_answer, objects, sharing};
use crate::opened::{Opened, Stage};
use crate::picture::{Frame, Histogram, OverTime, Picture, Value as ValueAt};
use crate::plans;
use crate::point::ColourBy;
use crate::shared_lines::shared_lines;
use crate::standalone::SavedView;
use crate::summary::summary;
use crate::{JobRanks, Session};

/// A request, without the parts that only the server needs.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Path of the request, such as `picture`.
    pub path: String,
    /// Parameters after `?`.
    pub parameters: BTreeMap<String, String>,
    /// Body of a POST request; `None` for GET.
    pub body: Option<String>,
}

impl Question {
    /// Parses a path with parameters, such as `report?recording=0`.
    pub fn parse(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parameters = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), unescaped(value)))
            .collect();
        Self {
            path: path.to_owned(),
            parameters,
            body: None,
        }
    }

    /// The requested part of the time, in nanoseconds since the recording began; `None`: all of the time.
    fn selection(&self) -> Result<Option<(u64, u64)>, Answer> {
        if !self.parameters.contains_key("since") && !self.parameters.contains_key("until") {
            return Ok(None);
        }
        let (since, until) = (self.number("since")?, self.number("until")?);
        match since < until {
            true => Ok(Some((since, until))),
            false => Err(Answer::error(400, "until: expected a time after since")),
        }
    }

    fn number(&self, name: &str) -> Result<u64, Answer> {
        let text = self.parameters.get(name);
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| Answer::error(400, format!("{name}: expected a whole number")))
    }
}

/// Decodes `%20` and `+`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        (rest, _) = match (byte, code) {
            (b'%', Some(code)) => (&after[2..], bytes.push(code)),
            (b'+', _) => (after, bytes.push(b' ')),
            _ => (after, bytes.push(byte)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn json_answer(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => Answer {
            status: 200,
            content_type: "application/json",
            body: body.into(),
        },
        Err(error) => Answer::error(500, error.to_string()),
    }
}

fn json_text(text: String) -> Answer {
    Answer {
        status: 200,
        content_type: "application/json",
        body: text.into(),
    }
}

impl Session {
    /// Answers a request of the page.
    pub fn answer(&self, question: &Question) -> Answer {
        self.find(question).unwrap_or_else(|error| error)
    }

    fn find(&self, question: &Question) -> Result<Answer, Answer> {
        if question.path == "open" {
            return Ok(json_answer(&self.overview()));
        }
        if question.path == "file" {
            let address = question.parameters.get("address");
            let view = SavedView {
                address: address.cloned().unwrap_or_default(),
                selection: question.selection()?,
            };
            let file = self.saved(&view);
            let file = file.map_err(|error| Answer::error(500, error.to_string()))?;
            return Ok(Answer {
                status: 200,
                content_type: "application/octet-stream",
                body: file.into(),
            });
        }
        if question.path == "simulation" {
            let number = question.number("number")? as usize;
            let found = self.simulations.get(number);
            return found
                .map(|(_, simulation)| json_answer(simulation))
                .ok_or_else(|| Answer::error(404, "no such simulation"));
        }
        if question.path == "sweep" {
            let number = question.number("number")? as usize;
            let found = self.sweeps.get(number);
            return found
                .map(|(_, report)| json_answer(report))
                .ok_or_else(|| Answer::error(404, "no such sweep"));
        }
        if let ("job" | "rank", Some(job)) = (question.path.as_str(), &self.job) {
            return match question.path.as_str() {
                "job" => Ok(job.answer()),
                _ => job.open(question.number("position")? as usize, self),
            };
        }
        if question.path == "log" {
            let number = question.number("number")? as usize;
            let seen = question.number("seen").ok();
            let found = self.logs.get(number);
            return found
                .map(|log| json_answer(&log.answer(seen)))
                .ok_or_else(|| Answer::error(404, "no such log"));
        }
        let number = question.number("recording")? as usize;
        let recordings = self.recordings();
        let opened = recordings
            .get(number)
            .ok_or_else(|| Answer::error(404, format!("no recording {number}")))?;
        self.find_in(opened, question)
    }

    /// Answers a request about a recording.
    fn find_in(&self, opened: &Opened, question: &Question) -> Result<Answer, Answer> {
        let stage = opened.stage();
        // These answers depend on the selected time; pictures get their time from their frames.
        let selection = question.selection()?;
        let selected = || {
            let found = opened.stage_of(selection);
            found.map_err(|error| Answer::error(500, error.to_string()))
        };
        let json = |value: Value| Ok(json_answer(&value));
        match question.path.as_str() {
            "progress" => json(progress(opened, &stage)),
            "report" => Ok(report(opened, &*selected()?)),
            "summary" => Ok(json_answer(&summary(
                opened,
                &*selected()?,
                selection.is_some(),
            ))),
            "objects" => Ok(json_answer(&brief(opened, &*selected()?))),
            "object" | "matrix" => object(opened, &*selected()?, question),
            "lines" => {
                let stage = selected()?;
                let lines = &stage.found.lines;
                Ok(json_answer(
                    lines.get_or_init(|| shared_lines(opened, &stage, selection)),
                ))
            }
            "exact" => {
                let selection = selection
                    .ok_or_else(|| Answer::error(400, "since: expected a whole number"))?;
                let is_exact = opened.read_exactly(selection);
                json(json!(
                    is_exact.map_err(|error| Answer::error(500, error.to_string()))?
                ))
            }
            "flame" | "functions" | "code" => self.costs(opened, &*selected()?, question),
            "picture" => picture(opened, &stage, question),
            "value" => {
                let value = ValueAt::new(opened.sources(&stage), &frame_of(question)?);
                json(json!(
                    value.map_err(|error| Answer::error(500, error.to_string()))?
                ))
            }
            "histogram" => {
                let found =
                    Histogram::new(opened.sources(&stage), by(question)?, &frame_of(question)?);
                json(with_share(found, &stage)?)
            }
            "over-time" => {
                let whole = Frame {
                    place_from: 0,
                    place_to: opened.space.bytes(),
                    from_ns: 0,
                    to_ns: opened.scale.duration_ns(),
                    columns: question.number("columns")? as usize,
                    rows: 1,
                };
                let found = OverTime::new(opened.sources(&stage), by(question)?, &whole);
                json(with_share(found, &stage)?)
            }
            "threads" => {
                let stage = selected()?;
                let threads = opened.recording.tables.threads.len();
                json(json!({
                    "shared": sharing(&stage.attribution, threads),
                    "timeline": stage.timeline.form(),
                }))
            }
            "plan" => plans::answer(self, opened, &stage, question.body.as_deref()),
            path => Err(Answer::error(404, format!("nothing is called {path}"))),
        }
    }

    /// Answers a request about the cost of code.
    fn costs(&self, opened: &Opened, stage: &Stage, question: &Question) -> Result<Answer, Answer> {
        let costs = stage.costs(opened);
        match question.path.as_str() {
            "flame" => Ok(json_answer(&flame(opened, stage, costs))),
            "functions" => Ok(json_answer(&code::functions(opened, costs))),
            _ => {
                let module = match question.parameters.contains_key("module") {
                    true => Some(ModuleId(
                        question.number("module")?.min(u32::MAX.into()) as u32
                    )),
                    false => None,
                };
                let name = question.parameters.get("function");
                let name = name.map_or("", String::as_str);
                code::code(opened, costs, &self.source_folders, (module, name))
                    .map(|found| json_answer(&found))
                    .ok_or_else(|| {
                        Answer::error(404, format!("no function {name} accesses memory here"))
                    })
            }
        }
    }

    pub(crate) fn overview(&self) -> Value {
        let recordings = self.recordings();
        let recordings = recordings.iter().map(|opened| recording(opened));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "recordings": recordings.collect::<Vec<Value>>(),
            "simulations": self.simulations.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "job": self.job.as_ref().map(JobRanks::name),
            "sweeps": self.sweeps.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "logs": self.logs.iter().map(|log| log.path().display().to_string()).collect::<Vec<_>>(),
            "target": self.target.as_ref().map(machine),
            "plan_file": self.plan.as_ref().map(|(path, _)| path.display().to_string()),
            "missing": *self.missing.lock().expect("nobody panics holding it"),
            "source_folders": self.source_folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>(),
        })
    }
}

/// JSON of a machine, for drawing.
fn machine(machine: &nearpage_machine::Machine) -> Value {
    json!({
        "name": machine.name,
        "page_bytes": machine.page_bytes,
        "nodes": machine.nodes,
        "devices": machine.devices,
        "latency_ns": machine.latency_ns,
        "distance": machine.distance,
        "weights": machine.weights(),
        "links": machine.links,
    })
}

/// JSON of properties of a whole recording.
fn recording(opened: &Opened) -> Value {
    const EXTENTS_MAX: usize = 20_000;
    let recording = &opened.recording;
    let metadata = &recording.metadata;
    let scale = &opened.scale;
    let threads = recording.tables.threads.iter().enumerate();
    let threads: Vec<Value> = threads
        .map(|(number, thread)| {
            json!({
                "pid": thread.pid, "tid": thread.tid, "name": thread.name,
                "team": thread.team, "team_index": thread.team_index,
                "order": thread.order, "start": thread.start_function,
                "slot": scale.thread_slots[number],
                "counts_as": scale.counted_as[number],
            })
        })
        .collect();
    let since = |time_ns: u64| time_ns.saturating_sub(scale.begin_ns);
    let marks = metadata.marks.iter();
    json!({
        "folder": recording.folder.display().to_string(),
        "command": metadata.command,
        "source": metadata.source,
        "measures_latency": metadata.source.measures_latency(),
        "recorder": metadata.recorder,
        "rate_hz": metadata.rate_hz,
        "complete": recording.is_complete(),
        "notes": metadata.notes,
        "counts": metadata.counts,
        "damaged_blocks": metadata.damaged_blocks,
        "accesses": recording.access_count(),
        "duration_ns": u64::from(scale.ticks) * scale.tick_ns,
        "line_bytes": scale.line_bytes,
        "tick_ns": scale.tick_ns,
        "space_bytes": opened.space.bytes(),
        "extents": opened.space.extents().iter().take(EXTENTS_MAX)
            .map(|extent| json!([extent.place, extent.bytes, format!("{:#x}", extent.address), extent.pid]))
            .collect::<Vec<Value>>(),
        "marks": marks.map(|mark| json!([since(mark.time_ns), mark.begin])).collect::<Vec<Value>>(),
        "machine": machine(&recording.machine),
        "threads": threads,
        "colours": scale.threads,
        "functions": opened.functions.names,
    })
}

fn progress(opened: &Opened, stage: &Stage) -> Value {
    let (done, all) = opened.progress();
    json!({
        "share": stage.share,
        "picture_share": stage.store_share,
        "done": done, "all": all,
        "elsewhere": stage.elsewhere,
        "missing": stage.missing,
    })
}

/// JSON of the report, as `report --json` prints it, with additions for the page.
fn report(opened: &Opened, stage: &Stage) -> Answer {
    let text = stage.found.report.get_or_init(|| {
        let mut content = Content::new(&stage.attribution, &opened.recording);
        if stage.share < 1.0 {
            // Confidence in patterns takes longest to compute, and a sample's result is replaced soon, so it is
            // skipped.
            content.sampling = None;
        }
        let report = json(
            &content,
            OBJECTS_WHOLE,
            nearpage_report::GroupBy::Object,
            &mut opened.recording.symbols(),
        );
        let shown = Value::from(objects(opened, stage));
        let teams = stage.attribution.teams.iter();
        let teams: Vec<Value> = teams
            .map(|team| json!({ "name": team.name, "pid": team.pid, "threads": team.threads }))
            .collect();
        let teams = Value::from(teams);
        format!(
            "{{\"report\":{report},\"shown\":{shown},\"teams\":{teams},\"share\":{},\"objects\":{}}}",
            stage.share,
            stage.attribution.objects.len()
        )
    });
    json_text(text.clone())
}

/// Answers a request for an object, or for the matrix of its pages and threads.
fn object(opened: &Opened, stage: &Stage, question: &Question) -> Result<Answer, Answer> {
    let number = question.number("object")? as usize;
    let absent = || Answer::error(404, format!("no object {number}"));
    let position = stage.position(number).ok_or_else(absent)?;
    if question.path == "object" {
        return object_answer(opened, stage, position)
            .map(json_text)
            .ok_or_else(absent);
    }
    let group = stage.attribution.objects.get(position).ok_or_else(absent)?;
    let whole = |name| Ok::<u32, Answer>(question.number(name)?.min(u32::MAX.into()) as u32);
    Ok(json_answer(&matrix(
        group,
        whole("from")?,
        whole("to")?,
        whole("bins")?,
    )))
}

fn frame_of(question: &Question) -> Result<Frame, Answer> {
    Ok(Frame {
        place_from: question.number("place_from")?,
        place_to: question.number("place_to")?,
        from_ns: question.number("from_ns")?,
        to_ns: question.number("to_ns")?,
        columns: question.number("columns").unwrap_or(1) as usize,
        rows: question.number("rows").unwrap_or(1) as usize,
    })
}

/// JSON of a result from the points, with the share of the accesses that the points represent.
fn with_share(found: io::Result<impl Serialize>, stage: &Stage) -> Result<Value, Answer> {
    let found = found.map_err(|error| Answer::error(500, error.to_string()))?;
    let mut value = json!(found);
    value["share"] = json!(stage.store_share);
    Ok(value)
}

fn by(question: &Question) -> Result<ColourBy, Answer> {
    let name = question
        .parameters
        .get("by")
        .map_or("thread", String::as_str);
    ColourBy::from_name(name).ok_or_else(|| Answer::error(400, format!("by: no colouring {name}")))
}

/// A line of JSON, then a byte for the colour of each bin, then a little-endian `f32` for the accesses of each bin.
fn picture(opened: &Opened, stage: &Stage, question: &Question) -> Result<Answer, Answer> {
    let first = match question.parameters.contains_key("first") {
        true => Some(question.number("first")? as usize),
        false => None,
    };
    let (by, frame) = (by(question)?, frame_of(question)?);
    let picture = Picture::new(opened.sources(stage), by, first, &frame)
        .map_err(|error| Answer::error(500, error.to_string()))?;
    let head = json!({
        "frame": picture.frame,
        "coarse": picture.coarse,
        "share": stage.store_share,
        "totals": picture.totals,
    });
    let mut body = head.to_string().into_bytes();
    body.push(b'\n');
    body.extend_from_slice(&picture.colours);
    body.extend(picture.accesses.iter().flat_map(|sum| sum.to_le_bytes()));
    Ok(Answer {
        status: 200,
        content_type: "application/octet-stream",
        body: body.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_taken_apart() {
        let question = Question::parse("matrix?recording=0&name=a%20b%3Cc+d&x=%zz%");
        assert_eq!(question.path, "matrix");
        assert_eq!(question.number("recording").ok(), Some(0));
        assert_eq!(question.parameters["name"], "a b<c d");
        assert_eq!(question.parameters["x"], "%zz%");
        assert_eq!(question.number("bins").expect_err("absent").status, 400);
    }
}
