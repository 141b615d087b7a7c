import java.lang.reflect.Constructor;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hudi.common.table.view.FileSystemViewManager;
import org.apache.hudi.hadoop.fs.HadoopFSUtils;
import org.apache.hudi.storage.StorageConfiguration;
import org.apache.hudi.storage.hadoop.HoodieHadoopStorage;
import org.apache.hudi.timeline.service.TimelineService;

/** Hudi's own timeline server with views in memory and markers, until it is killed. Prints its port. */
public class TimelineServer {
  public static void main(String[] arguments) throws Exception {
    TimelineService.Config config = new TimelineService.Config();
    config.serverPort = 0;
    config.enableMarkerRequests = true;
    config.viewStorageType = org.apache.hudi.common.table.view.FileSystemViewStorageType.MEMORY;
    StorageConfiguration<?> storage = HadoopFSUtils.getStorageConf(new Configuration());
    FileSystemViewManager views = TimelineService.buildFileSystemViewManager(config, storage);
    for (Constructor<?> made : TimelineService.class.getConstructors()) {
      Class<?>[] wanted = made.getParameterTypes();
      Object[] given = new Object[wanted.length];
      for (int i = 0; i < wanted.length; i++) {
        if (wanted[i] == TimelineService.Config.class) given[i] = config;
        else if (wanted[i] == FileSystemViewManager.class) given[i] = views;
        else if (wanted[i] == Configuration.class) given[i] = new Configuration();
        else if (wanted[i].isAssignableFrom(storage.getClass())) given[i] = storage;
        else if (wanted[i].getSimpleName().equals("HoodieStorage"))
          given[i] = new HoodieHadoopStorage(FileSystem.get(new Configuration()));
        else if (wanted[i].getSimpleName().equals("HoodieEngineContext"))
          given[i] = new org.apache.hudi.common.engine.HoodieLocalEngineContext(storage);
        else throw new IllegalStateException("a constructor wants " + wanted[i]);
      }
      System.out.println("PORT " + ((TimelineService) made.newInstance(given)).startService());
      System.out.flush();
      Thread.sleep(Long.MAX_VALUE);
    }
  }
}
