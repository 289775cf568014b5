package load

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// linesEvery is how often a load writes a line where there is no terminal.
const linesEvery = 5 * time.Second

// unit is what the share of a load that is done is counted in.
type unit string

const (
	rowsUnit  unit = "rows"
	bytesUnit unit = "bytes"
)

// Progress shows how a load goes, one load at a time: a bar on a terminal, a line
// every few seconds elsewhere, and a last line with the rate.
type Progress struct {
	out      io.Writer
	terminal bool
	now      func() time.Time

	what  string // is loaded
	start time.Time
	bar   *progressbar.ProgressBar // on a terminal, during a load

	// Of the phase under way:
	label        string
	total        int64 // 0 = not known
	began, shown time.Time
}

// NewProgress shows progress on out, standard error usually.
func NewProgress(out io.Writer) *Progress {
	p := &Progress{out: out, now: time.Now}
	if file, ok := out.(*os.File); ok {
		p.terminal = term.IsTerminal(int(file.Fd()))
	}
	return p
}

// begin starts a load. Its first phase has no name.
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
	most := total
	if most == 0 {
		most = -1
	}
	p.bar = progressbar.NewOptions64(most,
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

// step is called for each row: rows have been read, and done of the total.
func (p *Progress) step(rows, done int64) {
	if rows%stepRows == 0 {
		p.show(rows, done)
	}
}

// show is step for many rows at once.
func (p *Progress) show(rows, done int64) {
	if p.bar != nil {
		if p.total > 0 {
			done = min(done, p.total-1) // the library ends a full bar
		}
		_ = p.bar.Set64(done)
		return
	}
	now := p.now()
	if now.Sub(p.shown) < linesEvery {
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
