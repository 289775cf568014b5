package load

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// lineInterval is the time between two lines, if the output is not a terminal.
const lineInterval = 5 * time.Second

// unit is the unit in which the progress of a load is counted.
type unit string

const (
	rowsUnit  unit = "rows"
	bytesUnit unit = "bytes"
)

// Progress shows the progress of one load at a time. On a terminal it is a bar, elsewhere
// a line every few seconds. A last line has the rate.
type Progress struct {
	out      io.Writer
	terminal bool
	now      func() time.Time

	what  string // what is loaded
	start time.Time
	bar   *progressbar.ProgressBar // on a terminal, during a load

	// Of the present phase:
	label        string
	total        int64 // 0 = not known
	began, shown time.Time
}

// NewProgress returns a Progress that writes to out, usually standard error.
func NewProgress(out io.Writer) *Progress {
	p := &Progress{out: out, now: time.Now}
	if file, ok := out.(*os.File); ok {
		p.terminal = term.IsTerminal(int(file.Fd()))
	}
	return p
}

// begin starts a load, and its first phase, which has no name.
func (p *Progress) begin(what string, total int64, u unit) {
	p.what, p.start = what, p.now()
	p.measure(what, total, u)
}

// phase begins another phase of the load.
func (p *Progress) phase(doing string, total int64, u unit) {
	p.abandon()
	p.measure(p.what+": "+doing, total, u)
}

func (p *Progress) measure(label string, total int64, u unit) {
	p.label, p.total, p.began = label, total, p.now()
	p.shown = p.began
	if !p.terminal {
		return
	}
	size := total
	if size == 0 {
		size = -1 // not known
	}
	p.bar = progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(p.out),
		progressbar.OptionSetDescription(label),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		progressbar.OptionShowBytes(u == bytesUnit),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(string(u)),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)
}

// stepRows is how many rows pass between two readings of the clock.
const stepRows = 256

// step is called after each row. rows have been read so far, and done of the total.
func (p *Progress) step(rows, done int64) {
	if rows%stepRows == 0 {
		p.show(rows, done)
	}
}

// show is step for many rows at once.
func (p *Progress) show(rows, done int64) {
	if p.bar != nil {
		if p.total > 0 {
			done = min(done, p.total-1) // at the total the library would end the bar
		}
		_ = p.bar.Set64(done)
		return
	}
	now := p.now()
	if now.Sub(p.shown) < lineInterval {
		return
	}
	p.shown = now
	share := ""
	if p.total > 0 {
		share = fmt.Sprintf(" (%d %%)", 100*done/p.total)
	}
	fmt.Fprintf(p.out, "%s: %s%s\n", p.label, rate(rows, now.Sub(p.began)), share)
}

// end writes the last line; the note may be empty.
func (p *Progress) end(rows int64, note string) {
	p.abandon()
	if note != "" {
		note = "; " + note
	}
	fmt.Fprintf(p.out, "%s: %s%s\n", p.what, rate(rows, p.now().Sub(p.start)), note)
}

// abandon removes the bar, if there is one.
func (p *Progress) abandon() {
	if p.bar == nil {
		return
	}
	_ = p.bar.Exit()
	_ = p.bar.Clear()
	p.bar = nil
}

func rate(rows int64, in time.Duration) string {
	perSecond := float64(rows)
	if in > 0 {
		perSecond /= in.Seconds()
	}
	return fmt.Sprintf("%d rows in %.1f s, %.0f rows/s", rows, in.Seconds(), perSecond)
}
