import ij.ImagePlus;
import ij.io.Opener;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;

/** Reads with ImageJ 1.x what standard input asks for: `java -cp ij.jar Reader.java OUT`. The lines are those of `programs.py`. */
class Reader {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // ImageJ prints why it refuses a file.
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] asked = line.split("\t");
            String answer;
            try {
                answer = "reads\t" + read(asked[2], Path.of(arguments[0], asked[0]));
            } catch (Throwable error) {
                answer = "refuses\t" + String.valueOf(error).split("\n")[0];
            }
            answers.println(asked[0] + "\t" + answer);
            answers.flush();
        }
    }

    static String read(String path, Path out) throws Exception {
        Opener opener = new Opener();
        opener.setSilentMode(true);
        ImagePlus image = opener.openImage(path);
        if (image == null) throw new IllegalArgumentException("ImageJ cannot open it");
        short[] pixels = (short[]) image.getProcessor().getPixels();
        ByteBuffer values = ByteBuffer.allocate(2 * pixels.length).order(ByteOrder.LITTLE_ENDIAN);
        for (short pixel : pixels) values.putShort(pixel);
        Files.write(out, values.array());
        return "<u2 " + image.getHeight() + "x" + image.getWidth();
    }
}
