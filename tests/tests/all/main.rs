//! nearpage's command, real programs and real kernels. One program, whose tests share the processors: a program for each
//! file would take its own time to link, and the last test of each would run alone.

mod attach;
mod chaos;
mod collector;
mod command;
mod documents;
mod formats;
mod full;
mod generated;
mod guest;
mod guest_long;
mod house;
mod job;
mod lab;
mod lab_refused;
mod layouts;
mod machine;
mod matrix;
mod mutated;
mod pinned;
mod programs;
mod sample_budget;
mod samples;
mod schema;
mod screen;
mod simulate;
mod slurm;
mod strangers;
mod sweep;
mod system;
mod truth;
mod unharmed;
mod unusual;
mod view;
mod widths;
