package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"
)

// report is what the measures found.
type report struct {
	bin      string   // where Postgres' programs are
	group    string   // that is being measured
	measured []string // the groups, this one included
	rows     []row
	tables   []*table
	plots    []plotted // in the order they were begun
	left     []leftOut
}

// leftOut is what a group could not measure, and why.
type leftOut struct{ group, what string }

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

// atMost adds figures that are no ratio. The last of ours is to be at most goal,
// as it is printed; 0 = none.
func (r *report) atMost(what, format string, ours, against []float64, goal float64) {
	text := func(format string, of []float64) string {
		values := make([]any, len(of))
		for i, v := range of {
			values[i] = v
		}
		return fmt.Sprintf(format, values...)
	}
	l := row{group: r.group, what: what, ours: text(format, ours)}
	if against != nil {
		l.against = text(format, against)
	}
	if goal > 0 {
		one := format[strings.LastIndexByte(format, '%'):]
		l.goal = "≤ " + fmt.Sprintf(one, goal)
		if last := ours[len(ours)-1]; last > goal && fmt.Sprintf(one, last) != fmt.Sprintf(one, goal) {
			l.goal += " missed"
		}
	}
	r.rows = append(r.rows, l)
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
	r.left = append(r.left, leftOut{r.group, what})
	fmt.Fprintln(os.Stderr, "bench: left out:", what)
}

// bar adds what a case cost on each side to the plot of that title.
func (r *report) bar(title, what string, sides ...*side) {
	p := begun(r, title, func() *bars { return &bars{name: title} })
	for _, s := range sides {
		value := s.cost.perRequest()
		if strings.HasSuffix(strings.ToLower(title), "requests per second") {
			value = s.cost.perSecond()
		}
		p.add(s.name, what, value)
	}
}

// point adds what a side cost at x to the plot of that title.
func (r *report) point(title, axis, side string, x int, value float64) {
	begun(r, title, func() *lines { return &lines{name: title, axis: axis} }).add(side, x, value)
}

// begun is the plot of that title, which is begun if there is none.
func begun[P plotted](r *report, title string, begin func() P) P {
	for _, p := range r.plots {
		if p, same := p.(P); same && p.title() == title {
			return p
		}
	}
	p := begin()
	r.plots = append(r.plots, p)
	return p
}

func (r *report) print(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "what\tours\tagainst\tratio\tgoal")
	for _, l := range r.rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", l.what, l.ours, l.against, l.ratio, l.goal)
	}
	for _, l := range r.left {
		fmt.Fprintf(table, "left out: %s\t\t\t\t\n", l.what)
	}
	for _, t := range r.tables {
		fmt.Fprintf(table, "\n%s\n", t.title)
		for _, cells := range t.rows {
			fmt.Fprintln(table, strings.Join(cells, "\t"))
		}
	}
	return table.Flush()
}

// write writes the report and, beside it, its plots. Of a report that is there it keeps
// the sections and the plots that this run did not measure.
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
	fmt.Fprintf(&b, "# What listedge costs\n\nWritten by `make bench`, each section on the day that it names. Every ratio is of two sides that took turns in one run. "+
		"Absolute times are this machine's. A goal that was missed says so.\n\n")
	fmt.Fprintf(&b, "## Machine and versions\n\n```\n%s```\n\n## Figures\n", strings.Join(machine(r.bin), "\n")+"\n")
	for _, m := range measures {
		if !slices.Contains(r.measured, m.name) {
			b.WriteString(sectionOf(before, m.name))
			continue
		}
		r.writeSection(&b, m.name)
	}
	plots, err := r.drawPlots(file, before)
	if err != nil {
		return err
	}
	if len(plots) > 0 {
		fmt.Fprintf(&b, "\n## Plots\n\n%s\n", strings.Join(plots, "\n\n"))
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// sectionOf returns the section of that group in a report; empty = there is none.
func sectionOf(text, group string) string {
	_, section, found := strings.Cut(text, "\n### "+group+"\n")
	if !found {
		return ""
	}
	for _, next := range []string{"\n### ", "\n## "} {
		section, _, _ = strings.Cut(section, next)
	}
	return "\n### " + group + "\n" + strings.TrimRight(section, "\n") + "\n"
}

// writeSection writes what a group measured, and what it left out.
func (r *report) writeSection(to io.Writer, group string) {
	fmt.Fprintf(to, "\n### %s\n\n`make bench ONLY=%s`, %s\n", group, group, time.Now().UTC().Format(time.DateOnly))
	head := "\n| what | ours | against | ratio | goal |\n|---|---|---|---|---|\n"
	for _, l := range r.rows {
		if l.group == group {
			fmt.Fprintf(to, "%s| %s | %s | %s | %s | %s |\n", head, l.what, l.ours, l.against, l.ratio, l.goal)
			head = ""
		}
	}
	r.writeTables(to, group)
	for _, l := range r.left {
		if l.group == group {
			fmt.Fprintf(to, "\nLeft out: %s\n", l.what)
		}
	}
}

// plotLink matches a plot in a report.
var plotLink = regexp.MustCompile(`!\[([^]]+)\]\([^)]+\)`)

// drawPlots draws the plots of this run beside the report, and returns the links to all:
// those of the report before and these.
func (r *report) drawPlots(file, before string) (links []string, err error) {
	links = plotLink.FindAllString(before, -1)
	for _, p := range r.plots {
		name := plotFile(p.title())
		if err := p.draw(filepath.Join(filepath.Dir(file), name)); err != nil {
			return nil, fmt.Errorf("plot %s: %w", p.title(), err)
		}
		if link := fmt.Sprintf("![%s](%s)", p.title(), name); !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return links, nil
}

// writeTables writes a group's tables, below its rows.
func (r *report) writeTables(to io.Writer, group string) {
	for _, t := range r.tables {
		if t.group != group {
			continue
		}
		fmt.Fprintf(to, "\n%s\n\n", t.title)
		for i, cells := range t.rows {
			fmt.Fprintf(to, "| %s |\n", strings.Join(cells, " | "))
			if i == 0 {
				fmt.Fprintln(to, strings.Repeat("|---", len(cells))+"|")
			}
		}
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
		"nginx       "+version("nginx", "-v"),
		"varnish     "+version("varnishd", "-V"),
		"haproxy     "+version("haproxy", "-v"),
	)
}

func percentile(d []time.Duration, share float64) (ms float64) {
	d = slices.Sorted(slices.Values(d))
	return d[int(share*float64(len(d)-1))].Seconds() * 1000
}
