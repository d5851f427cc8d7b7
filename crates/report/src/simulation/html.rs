//! The results as one page that needs nothing else: no script, no font, no network.

use std::fmt::Write;

use nearpage_machine::several;
use nearpage_simulator::Outcome;

use super::{PARTS, Simulation, parts};
use crate::printable::{printable, shorten};
use nearpage_amount::{count, percent, time};

/// Colours of the parts, on white and on black.
const COLOURS: [(&str, &str); 5] = [
    ("#46515c", "#b4bfca"),
    ("#2e8b57", "#57b884"),
    ("#d1622b", "#ef8a52"),
    ("#8a4fbf", "#b488e0"),
    ("#c3c8ce", "#4b535c"),
];
/// Of the chart, in the units of its view box.
const PLOT_HEIGHT: f64 = 300.0;
const PLOT_TOP: f64 = 24.0;
const PLOT_LEFT: f64 = 56.0;
const BAR_WIDTH: f64 = 56.0;
const BAR_STEP: f64 = 120.0;
/// Characters of a name that fit below its bar.
const NAME_COLUMNS: usize = 18;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;\
background:var(--ground);color:var(--ink)}\
h1{font-size:1.3rem;overflow-wrap:anywhere}\
figure{margin:1.5rem 0;overflow-x:auto}\
svg{display:block;height:24rem;max-width:none}\
svg text{fill:var(--ink);font-size:12px}\
svg line{stroke:var(--rule)}\
figcaption span{display:inline-block;margin-right:1.2rem}\
figcaption i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border:1px solid var(--rule)}\
.wide{overflow-x:auto}\
table{border-collapse:collapse}\
th,td{text-align:right;padding:.2rem .6rem;border-bottom:1px solid var(--rule);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}\
dt{font-weight:600;margin-top:.5rem}\
dd{margin:0;overflow-wrap:anywhere}";

/// A page with a stacked bar for each policy as in Verghese's Figure 6.1 (all threads' time, the
/// first policy's is 100), the figures as a table, and the parameters.
pub fn simulation_html(simulation: &Simulation<'_>) -> String {
    let Simulation {
        machine,
        outcomes,
        notes,
        ..
    } = simulation;
    let title = format!("{} on {}", simulation.recorded(), printable(machine));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n\
         <style>{1}{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escaped(&title),
        palette()
    );
    if let Some(first) = outcomes.first() {
        let _ = writeln!(
            page,
            "<p>{}, {} misses, {} instructions.</p>",
            several(first.threads.len() as u64, "thread"),
            count(first.misses as f64),
            count(first.instructions as f64)
        );
        chart(&mut page, outcomes);
        table(&mut page, outcomes);
    }
    if !notes.is_empty() {
        page.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in *notes {
            let _ = writeln!(page, "<li>{}</li>", escaped(&printable(note)));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("<h2>Parameters</h2>\n<dl>\n");
    for outcome in *outcomes {
        let parameters: Vec<String> = outcome
            .parameters
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let parameters = escaped(&printable(&parameters.join(", ")));
        let _ = writeln!(page, "<dt>{}</dt><dd>{parameters}</dd>", name(outcome));
    }
    page.push_str("</dl>\n</body>\n</html>\n");
    page
}

/// The colours, by what the reader's system asks for.
fn palette() -> String {
    let parts = |of: fn(&(&'static str, &'static str)) -> &'static str| -> String {
        let colours = (0..).zip(&COLOURS);
        colours
            .map(|(part, colour)| format!("--part{part}:{};", of(colour)))
            .collect()
    };
    format!(
        ":root{{color-scheme:light dark;--ground:#fff;--ink:#1d2329;--rule:#c9ced4;{}}}\
         @media(prefers-color-scheme:dark){{:root{{--ground:#15181b;--ink:#e6e9ec;--rule:#3c434a;{}}}}}",
        parts(|colour| colour.0),
        parts(|colour| colour.1)
    )
}

#[expect(
    clippy::too_many_lines,
    reason = "one picture of a page, from its top to its bottom"
)]
fn chart(page: &mut String, outcomes: &[Outcome]) {
    let total = |outcome: &Outcome| outcome.split.total_ns();
    let base = total(&outcomes[0]);
    if base <= 0.0 {
        return;
    }
    let longest = outcomes.iter().map(total).fold(0.0, f64::max) / base * 100.0;
    // Lines at round figures, five or so of them.
    let step = [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]
        .into_iter()
        .find(|step| longest / step <= 6.0)
        .unwrap_or(10f64.powf((longest / 5.0).log10().ceil()));
    let top = (longest / step).ceil() * step;
    let y = |value: f64| PLOT_TOP + PLOT_HEIGHT * (1.0 - value / top);
    let width = PLOT_LEFT + BAR_STEP * outcomes.len() as f64;
    let height = PLOT_TOP + PLOT_HEIGHT + 44.0;
    let _ = writeln!(
        page,
        "<figure>\n<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"All threads' time by policy, \
         {} = 100\">",
        name(&outcomes[0])
    );
    let mut value = 0.0;
    while value <= top {
        let at = y(value);
        let _ = writeln!(
            page,
            "<line x1=\"{PLOT_LEFT}\" x2=\"{width}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0} %</text>",
            PLOT_LEFT - 6.0,
            at + 4.0
        );
        value += step;
    }
    for (position, outcome) in outcomes.iter().enumerate() {
        let middle = PLOT_LEFT + BAR_STEP * (position as f64 + 0.5);
        let mut sum = 0.0;
        for (part, (length, (words, _))) in parts(&outcome.split).into_iter().zip(PARTS).enumerate()
        {
            let share = 100.0 * length / base;
            let _ = writeln!(
                page,
                "<rect x=\"{:.1}\" y=\"{:.2}\" width=\"{BAR_WIDTH}\" height=\"{:.2}\" style=\"fill:var(--part{part})\">\
                 <title>{}: {words} {}, {share:.1} %</title></rect>",
                middle - BAR_WIDTH / 2.0,
                y(sum + share),
                PLOT_HEIGHT * share / top,
                name(outcome),
                time(length)
            );
            sum += share;
        }
        let below = PLOT_TOP + PLOT_HEIGHT;
        let texts = [
            (y(sum) - 5.0, format!("{sum:.0}")),
            (
                below + 16.0,
                escaped(&shorten(&printable(&outcome.policy), NAME_COLUMNS)),
            ),
            (
                below + 32.0,
                format!("{} local", percent(outcome.local_share())),
            ),
        ];
        for (at, text) in texts {
            let _ = writeln!(
                page,
                "<text x=\"{middle:.1}\" y=\"{at:.1}\" text-anchor=\"middle\">{text}</text>"
            );
        }
    }
    page.push_str("</svg>\n<figcaption>");
    for (part, (words, _)) in PARTS.into_iter().enumerate() {
        let _ = write!(
            page,
            "<span><i style=\"background:var(--part{part})\"></i>{words}</span>"
        );
    }
    let _ = writeln!(
        page,
        "<br>All threads' time, {} = 100 % = {}</figcaption>\n</figure>",
        name(&outcomes[0]),
        time(base)
    );
}

fn table(page: &mut String, outcomes: &[Outcome]) {
    let latency = |ns: Option<f64>| ns.map_or("–".to_owned(), |ns| format!("{ns:.0} ns"));
    let headings = [
        "policy",
        "time",
        "local misses",
        "local latency",
        "remote latency",
        "migrated",
        "replicated",
        "collapsed",
        "imbalance of controllers",
        "pages at most",
    ];
    page.push_str("<div class=\"wide\"><table>\n<tr>");
    for heading in headings {
        let _ = write!(page, "<th>{heading}</th>");
    }
    page.push_str("</tr>\n");
    for outcome in outcomes {
        let cells = [
            name(outcome),
            time(outcome.time_ns),
            percent(outcome.local_share()),
            latency(outcome.local_latency_ns),
            latency(outcome.remote_latency_ns),
            count((outcome.migrated + outcome.interleaved) as f64),
            count(outcome.replicated as f64),
            count(outcome.collapsed as f64),
            format!("{:.2}", outcome.controller_imbalance()),
            count(outcome.pages_max as f64),
        ];
        page.push_str("<tr>");
        for cell in cells {
            let _ = write!(page, "<td>{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

/// A policy's name, as text of the page.
fn name(outcome: &Outcome) -> String {
    let estimated = if outcome.estimated() {
        " (estimated)"
    } else {
        ""
    };
    escaped(&printable(&outcome.policy)) + estimated
}

/// As text of a page or the value of an attribute.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::tests::outcomes;
    use super::*;

    fn page(outcomes: &[Outcome], recording: &str, notes: &[String]) -> String {
        simulation_html(&Simulation {
            machine: "flash-8",
            recordings: &[recording.to_owned()],
            page_bytes: 4096,
            outcomes,
            notes,
            objects: &[],
            threads_elsewhere: &[],
        })
    }

    #[test]
    fn bars_are_as_high_as_their_time() {
        let page = page(&outcomes(), "cg", &[]);
        let heights: Vec<f64> = page
            .lines()
            .filter(|line| line.starts_with("<rect"))
            .map(|line| {
                let (_, rest) = line.split_once("height=\"").expect("height");
                rest.split_once('"')
                    .expect("quote")
                    .0
                    .parse()
                    .expect("number")
            })
            .collect();
        // 4 s are 100 %, the chart goes up to that; of the second bar 3 s.
        let [first, second] = [&heights[..5], &heights[5..]].map(|bar| bar.iter().sum::<f64>());
        assert!((first - PLOT_HEIGHT).abs() < 0.1, "{first}");
        assert!((second - 0.75 * PLOT_HEIGHT).abs() < 0.1, "{second}");
        assert!((heights[2] - PLOT_HEIGHT * 2.5 / 4.0).abs() < 0.1, "remote");
        let remote = format!(
            "<title>first-touch: remote memory {}, 62.5 %</title>",
            time(2.5e9)
        );
        assert!(page.contains(&remote), "{page}");
    }

    #[test]
    fn names_from_outside_stay_text() {
        let mut outcomes = outcomes();
        outcomes[1].policy = "plan:<img src=x onerror='a'>\u{1b}]0;".to_owned();
        let notes = ["<script>note</script>".to_owned()];
        let page = page(&outcomes, "\"><script>alert(1)</script>&amp;", &notes);
        assert!(
            !page.contains("<script") && !page.contains("<img") && !page.contains('\u{1b}'),
            "{page}"
        );
        assert!(page.contains("&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;"));
    }

    #[test]
    fn it_needs_nothing_else() {
        let page = page(&outcomes(), "cg", &["assumed".to_owned()]);
        for outside in ["http:", "https:", "<script", "@import", "url(", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme:dark"));
        let count = |what: &str| page.matches(what).count();
        for tag in ["svg", "figure", "table", "dl", "ul", "body", "html"] {
            let opened = count(&format!("<{tag} ")) + count(&format!("<{tag}>"));
            assert_eq!((opened, count(&format!("</{tag}>"))), (1, 1), "{tag}");
        }
    }

    #[test]
    fn nothing_simulated_is_a_page_too() {
        assert!(page(&[], "cg", &[]).ends_with("</html>\n"));
    }
}
