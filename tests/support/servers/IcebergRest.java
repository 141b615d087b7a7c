import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.RESTCatalogProperties.SnapshotMode;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.requests.CreateNamespaceRequest;
import org.apache.iceberg.rest.requests.CreateTableRequest;
import org.apache.iceberg.rest.requests.UpdateTableRequest;
import org.apache.iceberg.rest.responses.ConfigResponse;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.JsonAutoDetect.Visibility;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.PropertyAccessor;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.DeserializationFeature;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.PropertyNamingStrategies;

/**
 * A REST catalog on a port of the loopback interface: Iceberg's own handlers of requests, over a catalog in memory with
 * its metadata in files. Argument: their folder. It prints its port, and ends with its input. `/next/CODE`: the next
 * commit takes effect, and its answer is lost: it has this code, or with 0 the connection ends.
 */
public class IcebergRest {
  private static final AtomicInteger LOST = new AtomicInteger(-1);
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] given) throws Exception {
    JSON.setVisibility(PropertyAccessor.FIELD, Visibility.ANY);
    JSON.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    JSON.setPropertyNamingStrategy(new PropertyNamingStrategies.KebabCaseStrategy());
    RESTSerializers.registerAll(JSON);
    InMemoryCatalog catalog = new InMemoryCatalog();
    catalog.initialize("server",
        Map.of("warehouse", "file://" + given[0], "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO"));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext("/", exchange -> answer(catalog, exchange));
    server.start();
    System.out.println(server.getAddress().getPort());
    while (System.in.read() >= 0) {}
    System.exit(0);
  }

  private static void answer(InMemoryCatalog catalog, HttpExchange exchange) throws java.io.IOException {
    int code = 200;
    Object body;
    try {
      body = handled(catalog, exchange);
    } catch (Throwable error) {
      code = error instanceof NoSuchTableException || error instanceof NoSuchNamespaceException ? 404
          : error instanceof AlreadyExistsException || error instanceof CommitFailedException ? 409
          : error instanceof RuntimeException ? 400 : 500;
      body = ErrorResponse.builder().responseCode(code).withType(error.getClass().getSimpleName())
          .withMessage(String.valueOf(error.getMessage())).build();
    }
    boolean commits = exchange.getRequestMethod().equals("POST")
        && exchange.getRequestURI().getPath().matches(".*/tables/[^/]+");
    int lost = commits ? LOST.getAndSet(-1) : -1;
    if (lost == 0) {
      exchange.close();
      return;
    }
    byte[] text = body == null || lost > 0 ? new byte[0] : JSON.writeValueAsBytes(body);
    exchange.getResponseHeaders().add("Content-Type", "application/json");
    exchange.sendResponseHeaders(lost > 0 ? lost : text.length == 0 ? 204 : code, text.length == 0 ? -1 : text.length);
    exchange.getResponseBody().write(text);
    exchange.close();
  }

  private static Object handled(InMemoryCatalog catalog, HttpExchange exchange) throws Exception {
    String[] path = exchange.getRequestURI().getPath().split("/");
    String method = exchange.getRequestMethod();
    byte[] sent = exchange.getRequestBody().readAllBytes();
    if (path[1].equals("next")) {
      LOST.set(Integer.parseInt(path[2]));
      return null;
    }
    if (path[2].equals("config")) {
      return ConfigResponse.builder().build();
    }
    if (path.length == 3) {
      return method.equals("GET") ? CatalogHandlers.listNamespaces(catalog, Namespace.empty())
          : CatalogHandlers.createNamespace(catalog, read(sent, CreateNamespaceRequest.class));
    }
    Namespace namespace = Namespace.of(path[3].split("\u001f"));
    if (path.length == 4) {
      return CatalogHandlers.loadNamespace(catalog, namespace);
    }
    if (path.length == 5) {
      if (method.equals("GET")) {
        return CatalogHandlers.listTables(catalog, namespace);
      }
      CreateTableRequest wanted = read(sent, CreateTableRequest.class);
      return wanted.stageCreate() ? CatalogHandlers.stageTableCreate(catalog, namespace, wanted)
          : CatalogHandlers.createTable(catalog, namespace, wanted);
    }
    TableIdentifier table = TableIdentifier.of(namespace, path[5]);
    if (method.equals("DELETE")) {
      CatalogHandlers.dropTable(catalog, table);
      return null;
    }
    return method.equals("GET") ? CatalogHandlers.loadTable(catalog, table, SnapshotMode.ALL)
        : CatalogHandlers.updateTable(catalog, table, read(sent, UpdateTableRequest.class));
  }

  private static <T> T read(byte[] text, Class<T> kind) throws Exception {
    return JSON.readValue(text, kind);
  }
}
