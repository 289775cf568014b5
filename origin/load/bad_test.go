package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"listedge/internal/lists"
)

var (
	longName = strings.Repeat("ä", 100)
	columns  = " (a file is CSV in UTF-8, with commas, and has the columns id, name, type, sku, description, unit, imagePath, preferredContactId, costPrice, " +
		"avgCost, sellingPrice, taxable, trackStock, stockOnHand, reorderPoint, usage30, createdAt, active)"
	noDecimal = "not a decimal number of at most 1000 digits before and after the point"
	noUUID    = "not a UUID, as 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11"
	noID      = ": each row needs a UUID, by which a later import finds it (make version 5 UUIDs of other identifiers)"
	badFiles  = []struct{ content, want string }{
		// The header.
		{"", `1:1: no header row`},
		{"id,name,colour\n", `1:9: "colour": there is no such column` + columns},
		{"id,name,\n", `1:9: "": there is no such column` + columns},
		{"id;name\n", `1:1: "id;name": there is no such column` + columns},
		{"id,\"na\nme\"\n", `1:4: "na\nme": there is no such column` + columns},
		{"id,name,sku,id\n", `1:13: id: given twice`},
		{"\n\nsku,name\n", `1:1: id: the column is missing` + noID},
		{"\ufeffid,sku\r\n", `1:1: name: the column is missing`},
		// The shape of CSV.
		{"id,name\n" + id1 + "\n", `2:1: 1 cells, where the header has 2`},
		{"id,name\n" + id1 + ",a,b\n", `2:40: 3 cells, where the header has 2`},
		{"id,name\n" + id1 + ",\"a\nb\" c\n", `3:2: extraneous or missing " in quoted-field, in the row that begins in line 2`},
		{"id,name\n" + id1 + ",a\"b\n", `2:39: bare " in non-quoted-field, in the row that begins in line 2`},
		{"id,name\n" + id1 + ",\"a\nb\nc", `4:2: extraneous or missing " in quoted-field, in the row that begins in line 2`},
		// Text.
		{"id,name\n" + id1 + ",caf\xe9\n", `2:38: name: is not UTF-8`},
		{"id,name\n" + id1 + ",\"two\nlines \xed\xa0\x80\"\n", `2:38: name: is not UTF-8`},
		{"id,name\n" + id1 + ",a\x00b\n", `2:38: name: has a NUL character`},
		{"\xff\xfei\x00d\x00", `1:1: "\xff\xfei\x00d\x00": there is no such column` + columns},
		// Values.
		{"id,name\n" + id1 + ",\n", `2:38: name: must not be empty`},
		{"id,name\n,Chai\n", `2:1: id: must not be empty`},
		{"id,name\n{" + id1 + "},Chai\n", `2:1: id: ` + noUUID + `: "{` + id1 + `}"`},
		{"id,name\n" + id1[:35] + "g,Chai\n", `2:1: id: ` + noUUID + `: "` + id1[:35] + `g"`},
		{"id,name,costPrice\n" + id1 + ",\"quoted, é\",abc\n", `2:51: costPrice: ` + noDecimal + `: "abc"`},
		{"id,name,costPrice\n" + id1 + ",a,\n", `2:40: costPrice: must not be empty`},
		{"id,name,reorderPoint\n" + id1 + ",a,\n" + id2 + ",\"b\n\nc\",1e3\n", `5:4: reorderPoint: ` + noDecimal + `: "1e3"`},
		{"id,name,usage30\r\n" + id1 + ",a,-0.5\r\n", `2:40: usage30: must not be negative: "-0.5"`},
		{"id,name,usage30\n" + id1 + ",a,9007199254740991.0\n" + id2 + ",a,9007199254740992.1\n",
			`3:40: usage30: more than 9007199254740991, which not every client could read: "9007199254740992.1"`},
		{"id,name,costPrice\n" + id1 + ",a,1" + strings.Repeat("0", 1000) + "\n", `2:40: costPrice: ` + noDecimal + `: "1` + strings.Repeat("0", 59) + `"…`},
		{"id,name,description\n" + id1 + ",a,b\n" + id2 + ",a," + strings.Repeat("é", 32768) + "x\n", `3:40: description: longer than 65536 bytes`},
		{"id,name,type\n" + id1 + ",a,goods\n", `2:40: type: neither GOODS nor SERVICE: "goods"`},
		{"id,name,active\n" + id1 + ",a,yes\n", `2:40: active: neither true nor false: "yes"`},
		{"id,name,createdAt\n" + id1 + ",a,2026-02-30T00:00:00Z\n", `2:40: createdAt: not an instant, as 2026-01-02T03:04:05Z: "2026-02-30T00:00:00Z"`},
		{"id,name,createdAt\n" + id1 + ",a,2026-02-03T00:00:00.0001Z\n", `2:40: createdAt: finer than a millisecond: "2026-02-03T00:00:00.0001Z"`},
		{"id,name,preferredContactId\n" + id1 + ",a," + longName + "\n", `2:40: preferredContactId: ` + noUUID + `: "` + longName[:60] + `"…`},
		{"id,name\n" + id1 + ",a\n" + id2 + ",b\n" + strings.ToUpper(id1) + ",c\n", `4:1: id: a second row of this id: "` + id1 + `"`},
	}
)

func badFilesChangeNothing(t *testing.T, db database) {
	mustImport(t, db, lists.Items, write(t, "good.csv", "id,name\n"+id1+",untouched\n"), 1)
	const versions = "SELECT id, xmin, xmax FROM items"
	before := query(t, db.URL, versions)
	for _, bad := range badFiles {
		t.Run(fmt.Sprintf("%.60q", bad.content), func(t *testing.T) {
			file := write(t, "a.csv", bad.content)
			rows, err := Import(t.Context(), db.URL, lists.Items, db.Workspace, file, io.Discard)
			var place *BadFile
			if want := file + ":" + bad.want; !errors.As(err, &place) || place.Error() != want || place.Rows != 1 || rows != 0 {
				t.Errorf("got  %.400v\nwant %.400s", err, want)
			}
		})
	}
	for name, content := range map[string]string{
		"a quote that is not closed": "id,name\n\"" + strings.Repeat("x\n", 4<<20), "no line break": strings.Repeat(",", 20<<20),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Import(t.Context(), db.URL, lists.Items, db.Workspace, write(t, "a.csv", content), io.Discard)
			if err == nil || !strings.HasSuffix(err.Error(), "a row is longer than 4 MiB: is a quote not closed?") {
				t.Error(err)
			}
		})
	}
	if after := query(t, db.URL, versions); !reflect.DeepEqual(before, after) {
		t.Errorf("rows before %v, after %v", before, after)
	}

	for _, file := range []string{filepath.Join(t.TempDir(), "missing.csv"), t.TempDir()} {
		if _, err := Import(t.Context(), db.URL, lists.Items, db.Workspace, file, io.Discard); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func count(t *testing.T, db database) string {
	return query(t, db.URL, "SELECT count(*) FROM items")[0][0]
}

func lateErrorLeavesNothing(t *testing.T, db database) {
	const rows = 8_000
	file := filepath.Join(t.TempDir(), "large.csv")
	f, err := os.Create(file)
	must(err)
	fmt.Fprintln(f, "id,name,sku,description,costPrice,stockOnHand,usage30,trackStock,createdAt")
	for row := range rows {
		writeSampleItem(f, row)
	}
	fmt.Fprintf(f, "%s,last,,,1,1,1,t,yesterday\n", id1)
	must(f.Close())
	_, err = Import(t.Context(), db.URL, lists.Items, db.Workspace, file, io.Discard)
	want := fmt.Sprintf(`import %s: %[1]s:%d:53: createdAt: not an instant, as 2026-01-02T03:04:05Z: "yesterday"`, file, rows+2)
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
	log, err := os.ReadFile(db.server.LogFile())
	must(err)
	if strings.Contains(string(log), "yesterday") {
		t.Error("the server's log tells what is in the file")
	}
}

// pipe is a named one that gives rows until it has given n of them, calls then,
// and goes on for ever or is silent from there.
func pipe(t *testing.T, n int, then func(), silent bool) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "pipe.csv")
	must(syscall.Mkfifo(file, 0o600))
	f, err := os.OpenFile(file, os.O_RDWR, 0) // both ends, so that neither waits for the other
	must(err)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		w := bufio.NewWriter(f)
		fmt.Fprintln(w, "id,name,sku,description,costPrice,stockOnHand,usage30,trackStock,createdAt")
		for row := 0; w.Flush() == nil; row++ {
			if row == n {
				then()
				if silent {
					<-stop
					return
				}
			}
			writeSampleItem(w, row)
		}
	}()
	t.Cleanup(func() { close(stop); f.Close(); <-done })
	return file
}

// underWay is a number of rows that no buffer between a pipe and the server
// holds: when they are gone, the server has some of them.
const underWay = 5_000

func cancelLeavesNothing(t *testing.T, db database) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file := pipe(t, underWay, cancel, false)
	if _, err := Import(ctx, db.URL, lists.Items, db.Workspace, file, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
	// While the rows are written: a lock lets the statement wait for the cancel.
	blocker := open(t, db.URL)
	defer blocker.Close(context.Background())
	tx := must1(blocker.Begin(t.Context()))
	must1(tx.Exec(t.Context(), "LOCK TABLE items IN EXCLUSIVE MODE"))
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := Import(ctx, db.URL, lists.Items, db.Workspace, "testdata/items.csv", io.Discard)
		failed <- err
	}()
	const waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'items'::regclass"
	for query(t, db.URL, waiting)[0][0] == "0" {
		if t.Context().Err() != nil {
			t.Fatal("the import never came to the table")
		}
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for query(t, db.URL, waiting)[0][0] != "0" { // or else a next try would wait for this one
		if t.Context().Err() != nil {
			t.Fatal("the server still works on what was cancelled")
		}
	}
	must(tx.Rollback(t.Context()))
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
}

func silentPipeIsGivenUp(t *testing.T, db database) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file := pipe(t, underWay, cancel, true)
	if _, err := Import(ctx, db.URL, lists.Items, db.Workspace, file, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func databaseRefuses(t *testing.T, db database) {
	execute(t, db.URL, "ALTER TABLE items ADD CONSTRAINT no_tea CHECK (name <> 'Tea')")
	file := write(t, "a.csv", "id,name\n"+id1+",Chai\n"+id2+",Tea\n")
	_, err := Import(t.Context(), db.URL, lists.Items, db.Workspace, file, io.Discard)
	if want := "import " + file + `: ERROR: new row for relation "items" violates check constraint "no_tea" (SQLSTATE 23514)`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
}

func importStandardInput(t *testing.T, db database) {
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	for _, c := range []struct{ content, want string }{
		{"id,name\n" + id1 + ",Chai\n", ""},
		{"\ufeffname,id\nTea," + id2 + "\n", ""},
		{"id,name\n" + id1 + ",\n", "import <stdin>: <stdin>:2:38: name: must not be empty"},
	} {
		r, w, err := os.Pipe()
		must(err)
		os.Stdin = r
		must1(w.WriteString(c.content))
		w.Close()
		_, err = Import(t.Context(), db.URL, lists.Items, db.Workspace, "-", io.Discard)
		if err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%q: %v, want %q", c.content, err, c.want)
		}
		r.Close()
	}
	if n := count(t, db); n != "2" {
		t.Errorf("%s rows", n)
	}
}

func writeSampleItem(w io.Writer, n int) {
	fmt.Fprintf(w, "00000000-0000-4000-9000-%012d,Hex Nut no. %d,SKU-%06d,%s,%d.%02d,%d,%d,t,2025-01-%02dT%02d:00:00Z\n",
		n, n%1000, n, "Sold singly or by the case", n%500, n%100, n%50, n%300, 1+n%28, n%24)
}

func firstTwentyAreNamed(t *testing.T, db database) {
	content := "id,name,costPrice\n"
	for n := range 25 {
		content += fmt.Sprintf("00000000-0000-4000-9000-%012d,,1\n", n)
	}
	file := write(t, "a.csv", content+id2+",Tea,x\n")
	_, err := Import(t.Context(), db.URL, lists.Items, db.Workspace, file, io.Discard)
	var bad *BadFile
	if !errors.As(err, &bad) || bad.Rows != 26 || len(bad.Faults) != 20 || bad.Faults[19] != file+":21:38: name: must not be empty" ||
		!strings.HasSuffix(err.Error(), "\nand 6 more bad rows") {
		t.Errorf("%v", err)
	}
}
