import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;

/** Asks a server through JDBC, and prints a line for each row: url, table, user and password. */
public class Jdbc {
    interface Step {
        void run() throws Exception;
    }

    /** Prints columns of all rows. */
    static void show(String name, ResultSet rows, String... columns) throws SQLException {
        while (rows.next()) {
            StringBuilder line = new StringBuilder(name);
            for (String column : columns) {
                line.append('|').append(rows.getString(column));
            }
            System.out.println(line);
        }
        rows.close();
        System.out.println(name + " ends");
    }

    /** Prints what a step raises. */
    static void step(String name, Step step) {
        try {
            step.run();
        } catch (Throwable error) {
            System.out.println(name + " refused: " + error.getMessage());
        }
    }

    public static void main(String[] args) throws Exception {
        String table = args[1];
        Properties properties = new Properties();
        if (args.length > 2) {
            properties.put("user", args[2]);
            properties.put("password", args[3]);
        }
        try (Connection connection = DriverManager.getConnection(args[0], properties)) {
            DatabaseMetaData about = connection.getMetaData();
            step("product", () -> System.out.println(
                "product|" + about.getDatabaseProductName() + "|" + about.getIdentifierQuoteString()
                + "|" + about.isReadOnly() + "|" + about.supportsTransactions()
                + "|" + about.supportsUnion() + "|" + about.getMaxRowSize()
                + "|" + about.supportsStoredProcedures() + "|" + about.supportsCorrelatedSubqueries()
                + "|" + about.getDefaultTransactionIsolation()));
            step("catalogs", () -> show("catalogs", about.getCatalogs(), "TABLE_CAT"));
            step("schemas", () -> show("schemas", about.getSchemas(), "TABLE_CATALOG", "TABLE_SCHEM"));
            step("types", () -> show("types", about.getTableTypes(), "TABLE_TYPE"));
            step("tables", () -> show(
                "tables", about.getTables(null, "%", table, null), "TABLE_NAME", "TABLE_TYPE"));
            step("columns", () -> show(
                "columns", about.getColumns(null, null, table, null),
                "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "IS_NULLABLE"));
            step("keys", () -> show(
                "keys", about.getPrimaryKeys(null, null, table),
                "COLUMN_NAME", "KEY_SEQ"));
            step("pattern", () -> show(
                "pattern",
                about.getTables("fluss", connection.getSchema(), table.substring(0, table.length() - 1) + "_", new String[] {"TABLE"}),
                "TABLE_NAME"));
            step("types of SQL", () -> show("types of SQL", about.getTypeInfo(), "TYPE_NAME", "DATA_TYPE"));
            step("indexes", () -> show(
                "indexes", about.getIndexInfo(null, null, table, false, true)));
            step("procedures", () -> show("procedures", about.getProcedures(null, null, "%")));
            step("functions", () -> show("functions", about.getFunctions(null, null, "%")));
            step("best row", () -> show("best row", about.getBestRowIdentifier(null, null, table, 0, true)));
            step("rights", () -> show("rights", about.getTablePrivileges(null, null, table)));
            step("user types", () -> show("user types", about.getUDTs(null, null, "%", null)));
            step("imported", () -> show("imported", about.getImportedKeys(null, null, table)));
            step("exported", () -> show("exported", about.getExportedKeys(null, null, table)));
            step("cross", () -> show(
                "cross", about.getCrossReference(null, null, table, null, null, table)));
            step("update", () -> {
                try (Statement statement = connection.createStatement()) {
                    System.out.println("update|" + statement.executeUpdate(
                        "INSERT INTO " + table + " (id, s) VALUES (7, 'seven'), (8, NULL)"));
                }
            });
            step("insert", () -> {
                String text = "INSERT INTO " + table + " (id, s, m, d, ts) VALUES (?, ?, ?, ?, ?)";
                try (PreparedStatement statement = connection.prepareStatement(text)) {
                    statement.setInt(1, 9);
                    statement.setString(2, "it's; -- ?");
                    statement.setBigDecimal(3, new java.math.BigDecimal("-7.25"));
                    statement.setDate(4, java.sql.Date.valueOf("2024-01-31"));
                    statement.setTimestamp(5, java.sql.Timestamp.valueOf("2024-01-31 12:00:00.5"));
                    System.out.println("insert|" + statement.executeUpdate());
                }
            });
            step("query", () -> {
                try (Statement statement = connection.createStatement()) {
                    show("query", statement.executeQuery("SELECT * FROM " + table + " ORDER BY id"),
                        "id", "s", "m", "d", "ts");
                }
            });
            step("prepared", () -> {
                String text = "SELECT id FROM " + table + " WHERE s = ? AND id > ?";
                try (PreparedStatement statement = connection.prepareStatement(text)) {
                    statement.setString(1, "it's; -- ?");
                    statement.setInt(2, 1);
                    show("prepared", statement.executeQuery(), "id");
                }
            });
            step("missing", () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.executeQuery("SELECT * FROM nowhere");
                }
            });
            step("begin", () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.execute("BEGIN");
                }
            });
            step("drop", () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.execute("DROP TABLE " + table);
                }
            });
            step("gone", () -> show(
                "gone", about.getTables(null, "%", table, null), "TABLE_NAME"));
        }
    }
}
