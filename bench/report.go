package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// report is what the measures found.
type report struct {
	bin      string   // where Postgres' programs are
	group    string   // that is being measured
	measured []string // the groups, this one included
	took     map[string]time.Duration
	rows     []row
	tables   []*table
	plot     *bars               // nil = none
	left     map[string][]string // what a group could not measure, and why
}

// table is figures of several sides that have no ratio.
type table struct {
	group, title string
	rows         [][]string // the first one is the head
}

// row is a line of the table: a ratio, or figures that have none.
type row struct {
	group, what, ours, against, ratio, goal string
}

func (r *report) begin(group string) { r.group, r.measured = group, append(r.measured, group) }

// ratio adds ours over theirs. goal is what it is to be at most, 0 = none.
func (r *report) ratio(what, format string, ours, theirs, goal float64) {
	l := row{group: r.group, what: what, ours: fmt.Sprintf(format, ours), against: fmt.Sprintf(format, theirs), ratio: fmt.Sprintf("%.2f", ours/theirs)}
	if goal > 0 {
		l.goal = fmt.Sprintf("≤ %.2f", goal)
		if ours/theirs > goal {
			l.goal += " missed"
		}
	}
	r.rows = append(r.rows, l)
}

// atMost adds a figure that is no ratio, and is to be at most goal, as it is printed.
func (r *report) atMost(what, format string, ours, goal float64) {
	l := row{group: r.group, what: what, ours: fmt.Sprintf(format, ours), goal: "≤ " + fmt.Sprintf(format, goal)}
	if ours > goal && l.goal != "≤ "+l.ours {
		l.goal += " missed"
	}
	r.rows = append(r.rows, l)
}

// aim adds figures with a goal in words, which says if it was missed.
func (r *report) aim(what, ours, goal string, met bool) {
	if !met {
		goal += " missed"
	}
	r.rows = append(r.rows, row{group: r.group, what: what, ours: ours, goal: goal})
}

// figure adds what is no ratio.
func (r *report) figure(what, ours, against string) {
	r.rows = append(r.rows, row{group: r.group, what: what, ours: ours, against: against})
}

// table begins a table of that title.
func (r *report) table(title string, head ...string) *table {
	t := &table{group: r.group, title: title, rows: [][]string{head}}
	r.tables = append(r.tables, t)
	return t
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// leaveOut notes what could not be measured, and why.
func (r *report) leaveOut(what string) {
	r.left[r.group] = append(r.left[r.group], what)
	fmt.Fprintln(os.Stderr, "bench: left out:", what)
}

// print writes what was measured.
func (r *report) print(to io.Writer) {
	for _, group := range r.measured {
		r.writeSection(to, group)
	}
}

// write writes the report and, beside it, its plot. Of a report that is there it keeps
// the sections that this run did not measure.
func (r *report) write(ctx context.Context, file string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	before := string(text)
	var b bytes.Buffer
	fmt.Fprintf(&b, "# What listedge costs\n\nWritten by `make bench`, each section on the day that it names. "+
		"Every ratio is of two sides that took turns in one run. "+
		"Absolute times are this machine's. A goal that was missed says so.\n\n")
	fmt.Fprintf(&b, "## Machine and versions\n\n```\n%s```\n\n## Figures\n", strings.Join(machine(r.bin), "\n")+"\n")
	for _, m := range measures {
		if !slices.Contains(r.measured, m.name) {
			b.WriteString(sectionOf(before, m.name))
			continue
		}
		r.writeSection(&b, m.name)
	}
	if r.plot != nil {
		if err := r.plot.draw(filepath.Join(filepath.Dir(file), r.plot.file())); err != nil {
			return fmt.Errorf("plot: %w", err)
		}
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// sectionOf returns the section of that group in a report; empty = there is none.
func sectionOf(text, group string) string {
	_, section, found := strings.Cut(text, "\n### "+group+"\n")
	if !found {
		return ""
	}
	section, _, _ = strings.Cut(section, "\n### ")
	return "\n### " + group + "\n" + strings.TrimRight(section, "\n") + "\n"
}

// writeSection writes what a group measured, and what it left out.
func (r *report) writeSection(to io.Writer, group string) {
	fmt.Fprintf(to, "\n### %s\n\n`make bench ONLY=%s`, %s, in %.0f s\n", group, group, time.Now().UTC().Format(time.DateOnly), r.took[group].Seconds())
	head := "\n| what | ours | against | ratio | goal |\n|---|---|---|---|---|\n"
	for _, l := range r.rows {
		if l.group == group {
			fmt.Fprintf(to, "%s| %s | %s | %s | %s | %s |\n", head, l.what, l.ours, l.against, l.ratio, l.goal)
			head = ""
		}
	}
	for _, t := range r.tables {
		if t.group == group {
			fmt.Fprintf(to, "\n%s\n\n", t.title)
			for i, cells := range t.rows {
				fmt.Fprintf(to, "| %s |\n", strings.Join(cells, " | "))
				if i == 0 {
					fmt.Fprintln(to, strings.Repeat("|---", len(cells))+"|")
				}
			}
		}
	}
	if r.plot != nil && r.plot.group == group {
		fmt.Fprintf(to, "\n![%s](%s)\n", r.plot.title, r.plot.file())
	}
	for _, what := range r.left[group] {
		fmt.Fprintf(to, "\nLeft out: %s\n", what)
	}
}

// machine tells what the figures were taken on.
func machine(bin string) (lines []string) {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 {
			lines = append(lines, fmt.Sprintf("processors  %d × %s", len(cpus), cpus[0].ModelName))
		}
		if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil {
			lines = append(lines, fmt.Sprintf("memory      %d GiB", *memory.MemTotalBytes>>30))
		}
	}
	return append(lines,
		"kernel      "+version("uname", "-sr"),
		"go          "+runtime.Version(),
		"postgres    "+version(filepath.Join(bin, "postgres"), "--version"),
		"redis       "+version("redis-server", "--version"),
		"wrk         "+version("wrk", "--version"),
		"haproxy     "+version("haproxy", "-v"),
	)
}

func percentile(d []time.Duration, share float64) (ms float64) {
	d = slices.Sorted(slices.Values(d))
	return d[int(share*float64(len(d)-1))].Seconds() * 1000
}
