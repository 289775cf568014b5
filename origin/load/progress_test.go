package load

import (
	"os"
	"strings"
	"testing"
	"time"
)

// shown runs a load of 10 s and 10,000 rows with a step every 10 ms.
func shown(terminal bool, total int64, u unit) string {
	var out strings.Builder
	p := NewProgress(&out)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p.now, p.terminal = func() time.Time { return at }, terminal
	p.begin("items", total, u)
	for rows := int64(1); rows <= 12_800; rows++ {
		at = at.Add(time.Millisecond)
		p.step(rows, rows*10)
	}
	p.phase("writing", 12_800, rowsUnit)
	for rows := int64(6_400); rows <= 12_800; rows += 6_400 {
		at = at.Add(5 * time.Second)
		p.show(rows, rows)
	}
	p.end(12_800, "7 new or changed")
	p.abandon()
	return out.String()
}

func TestProgressInLines(t *testing.T) {
	want := `items: 5120 rows in 5.1 s, 1000 rows/s (40 %)
items: 10240 rows in 10.2 s, 1000 rows/s (80 %)
items: writing: 6400 rows in 5.0 s, 1280 rows/s (50 %)
items: writing: 12800 rows in 10.0 s, 1280 rows/s (100 %)
items: 12800 rows in 22.8 s, 561 rows/s; 7 new or changed
`
	if got := shown(false, 128_000, bytesUnit); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := shown(false, 0, bytesUnit); got != strings.NewReplacer(" (40 %)", "", " (80 %)", "").Replace(want) {
		t.Errorf("of a size not known:\n%s", got)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	for _, total := range []int64{0, 128_000} {
		got := shown(true, total, rowsUnit)
		bars, last, _ := strings.Cut(got, "items: 12800 rows in")
		if !strings.Contains(bars, "\r") || !strings.Contains(bars, "items: writing") || strings.Contains(bars, "\n") || last != " 22.8 s, 561 rows/s; 7 new or changed\n" {
			t.Errorf("total %d: %q", total, got)
		}
		if line := bars[strings.LastIndex(bars, "\r"):]; strings.TrimSpace(line) != "" {
			t.Errorf("the bar is not taken away: %q", line)
		}
	}
}

func TestProgressOfNothing(t *testing.T) {
	var out strings.Builder
	p := NewProgress(&out)
	p.begin("items", 0, rowsUnit)
	p.end(0, "")
	if !strings.HasPrefix(out.String(), "items: 0 rows in ") {
		t.Error(out.String())
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if NewProgress(file).terminal {
		t.Error("a file is no terminal")
	}
}
