package load

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin"
	"listedge/origin/admin"
)

// Both are run once: go test -run '^$' -bench . -benchtime 1x ./origin/load

const benchmarkItems = 1_000_000

// durable is a server that keeps its promises, as `listedge dev` runs it.
func durable(b *testing.B) string {
	p, err := sandbox.StartPostgres(b.Context(), sandbox.PostgresOptions{Dir: sandboxtest.Dir(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Stop() })
	url := p.URL("postgres")
	if _, err := admin.MigrateUp(b.Context(), url); err != nil {
		b.Fatal(err)
	}
	return url
}

func BenchmarkSeedMillionItems(b *testing.B) {
	url := durable(b)
	b.ResetTimer()
	for n := range b.N {
		spec := SeedSpec{Workspaces: 1, Items: benchmarkItems, Contacts: 10_000, Seed: int64(n)}
		if _, err := Seed(b.Context(), url, spec, NewProgress(os.Stderr)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*(benchmarkItems+10_000))/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkImportMillionItems(b *testing.B) {
	url := durable(b)
	workspaces, err := Seed(b.Context(), url, SeedSpec{Workspaces: 1}, nil)
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "items.csv")
	writeSampleItems(b, file, benchmarkItems)
	b.ResetTimer()
	for range b.N {
		if _, err := Import(b.Context(), url, origin.Items, workspaces[0], file, NewProgress(os.Stderr)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*benchmarkItems)/b.Elapsed().Seconds(), "rows/s")
	again, err := Import(b.Context(), url, origin.Items, workspaces[0], file, NewProgress(os.Stderr))
	if again != benchmarkItems || err != nil {
		b.Fatal(again, err)
	}
}

// writeSampleItems makes a file of rows with a few columns of each kind.
func writeSampleItems(t testing.TB, file string, rows int) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "id,name,sku,description,costPrice,stockOnHand,usage30,trackStock,createdAt")
	for n := range rows {
		writeSampleItem(w, n)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

func writeSampleItem(w io.Writer, n int) {
	fmt.Fprintf(w, "%s,\"%s %s, no. %d\",SKU-%06d,%s,%d.%02d,%d,%d,t,2025-01-%02dT%02d:00:00Z\n",
		seedID(seedSpace, "test", 0, n), words().Languages[n%2].Adjectives[n%7], words().Languages[n%2].Nouns[n%9], n%1000, n,
		"Sold singly or by the case", n%500, n%100, n%50, n%300, 1+n%28, n%24)
}
